// Watches, through the JavaScript SDK; the twin of ../test_watch.py.

import assert from 'node:assert/strict'

import { FilesystemEventType, InvalidArgumentError, NotFoundError } from 'e2b'

import { eventually, runIn } from './support.mjs'

async function aFile(sandbox) {
  await sandbox.files.makeDir('one')
  const events = []
  const ended = []
  const watch = await sandbox.files.watchDir('one', (event) => { events.push(event) }, {
    includeEntry: true,
    onExit: (error) => { ended.push(error) },
  })
  await sandbox.files.write('one/file', 'content')
  await eventually(() => events.length >= 3)
  const { CHMOD, CREATE, REMOVE, WRITE } = FilesystemEventType
  assert.deepEqual(events.map((event) => event.type), [CREATE, CHMOD, WRITE])
  assert.equal(events[2].entry.path, '/home/user/one/file')
  await sandbox.files.remove('one/file')
  await eventually(() => events.at(-1).type === REMOVE)
  await watch.stop()
  await eventually(() => ended.length === 1)
}

async function newFolders(sandbox) {
  await sandbox.files.makeDir('deep')
  const created = []
  const watch = await sandbox.files.watchDir('deep', (event) => {
    if (event.type === FilesystemEventType.CREATE) created.push(event.name)
  }, { recursive: true })
  await sandbox.commands.run('cd deep; mkdir -p a/b/c && touch a/b/c/f; mkdir -p x/y && touch x/y/{1..1000}')
  await eventually(() => created.length >= 1006)
  assert.equal(new Set(created).size, created.length)
  for (const name of ['a', 'a/b', 'a/b/c', 'a/b/c/f', 'x/y/1', 'x/y/1000']) assert(created.includes(name), name)
  await watch.stop()
}

async function refused(sandbox) {
  await sandbox.files.write('plain', '')
  await assert.rejects(sandbox.files.watchDir('none', () => {}), NotFoundError)
  await assert.rejects(sandbox.files.watchDir('plain', () => {}), InvalidArgumentError)
}

await runIn([aFile, newFolders, refused])
