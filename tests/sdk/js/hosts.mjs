// A program of an E2B user that knows the server by its domain only; the twin of ../hosts.py.
// Run with E2B_DOMAIN, E2B_API_KEY and NODE_EXTRA_CA_CERTS set; exits with 0 if everything behaved.

import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

import { Sandbox, TimeoutError } from 'e2b'

const domain = process.env.E2B_DOMAIN

async function get(url) {
  const response = await fetch(url)
  return [response.status, await response.text()]
}

async function served(url) {
  const end = Date.now() + 20_000
  for (;;) {
    const [status, body] = await get(url)
    if (status === 200) return body
    assert.equal(status, 502)
    assert.match(body, /port is not open/)
    assert(Date.now() < end)
    await sleep(100)
  }
}

async function addresses(sandbox) {
  const host = sandbox.getHost(3000)
  assert.equal(host, `3000-${sandbox.sandboxId}.${domain}`)
  await sandbox.files.write('site/index.html', 'served')
  const server = await sandbox.commands.run('python3 -m http.server 3000 -d site', { background: true })
  assert.equal(await served(`https://${host}/index.html`), 'served')
  await server.kill()

  const [status, body] = await get(`https://${sandbox.getHost(3001)}/`)
  assert.equal(status, 502)
  assert.match(body, /port is not open/)

  const url = await sandbox.downloadUrl('site/index.html')
  assert(url.startsWith(`https://49983-${sandbox.sandboxId}.${domain}/`))
  assert.deepEqual(await get(url), [200, 'served'])
}

async function broken(sandbox, stop) {
  const handle = await sandbox.commands.run('echo started; sleep 300', { background: true, timeoutMs: 0 })
  await stop()
  await assert.rejects(handle.wait(), (error) => {
    assert(error instanceof TimeoutError, `${error.name}: ${error.message}`)
    return true
  })
  assert(!(await sandbox.isRunning()))
  const [status, body] = await get(`https://${sandbox.getHost(3000)}/`)
  assert.equal(status, 502)
  assert.match(body, /was not found/)
}

const sandbox = await Sandbox.create('base', { timeoutMs: 300_000 })
await addresses(sandbox)
await broken(sandbox, () => sandbox.pause())
await sandbox.connect({ timeoutMs: 300_000 })
assert.equal((await sandbox.commands.run('echo again')).stdout, 'again\n')
await broken(sandbox, () => sandbox.kill())
