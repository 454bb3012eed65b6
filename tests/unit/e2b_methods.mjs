// Prints the methods of the E2B SDK for JavaScript, by the object that has them.

import { Sandbox, Template } from 'e2b'

const ends = [null, Object.prototype, Function.prototype]
const chain = (object) => (ends.includes(object) ? [] : [object, ...chain(Object.getPrototypeOf(object))])
const own = (object) =>
  Object.entries(Object.getOwnPropertyDescriptors(object))
    .filter(([, property]) => typeof property.value === 'function')
    .map(([name]) => name)
const methods = (object) => chain(object).flatMap(own)

const sandbox = new Sandbox({ sandboxId: 'i0', envdVersion: '0.6.13', apiKey: 'e2b_00' })
console.log(
  JSON.stringify({
    sandbox: [...methods(sandbox), ...methods(Sandbox)],
    'sandbox.commands': methods(sandbox.commands),
    'sandbox.pty': methods(sandbox.pty),
    'sandbox.files': methods(sandbox.files),
    'sandbox.git': methods(sandbox.git),
    Template: methods(Template),
  }),
)
