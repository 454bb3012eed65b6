// A user's program: lists, tags and snapshots through the E2B SDK for JavaScript.

import assert from 'node:assert/strict'
import { Sandbox, Template } from 'e2b'

const metadata = { 'a b': 'c&d=e', 'ä%20': '100%', half: 'js' }

async function pages(paginator, key) {
  const found = []
  while (paginator.hasNext) found.push((await paginator.nextItems()).map((item) => item[key]))
  return found
}

const began = new Date()
const made = []
for (let n = 0; n < 3; n++) made.push(await Sandbox.create('base', { metadata, timeoutMs: 100_000 }))
const ids = made.map((sandbox) => sandbox.sandboxId)
const newest = [...ids].reverse()
await made[1].pause()

const listed = (options, query) => pages(Sandbox.list({ ...options, query: { metadata, ...query } }), 'sandboxId')
assert.deepEqual(await listed(), [newest])
assert.deepEqual(await listed({ limit: 2 }), [newest.slice(0, 2), newest.slice(2)])
assert.deepEqual(await listed({ limit: 2, order: 'asc' }), [ids.slice(0, 2), ids.slice(2)])
assert.deepEqual(await listed({}, { state: ['paused'] }), [[ids[1]]])
assert.deepEqual(await listed({}, { state: ['running', 'paused'], startedAfter: began }), [newest])
assert.deepEqual(await listed({}, { template: 'nix' }), [[]])

const source = made[0]
const first = await source.createSnapshot({ name: 'js-first' })
assert.equal(first.snapshotId, 'default/js-first:default')
const second = await source.createSnapshot()
assert.deepEqual(await pages(source.listSnapshots({ limit: 1 }), 'snapshotId'), [[second.snapshotId], [first.snapshotId]])
assert.deepEqual(await pages(Sandbox.listSnapshots({ name: 'default/js-first' }), 'snapshotId'), [[first.snapshotId]])

const old = await Template.assignTags('js-first', ['v1', 'stable'])
await source.createSnapshot({ name: 'js-first' })
const tags = new Map((await Template.getTags('js-first')).map((each) => [each.tag, each.buildId]))
assert.deepEqual([...tags.keys()].sort(), ['default', 'stable', 'v1'])
assert.equal(tags.get('v1'), old.buildId)
assert.notEqual(tags.get('default'), old.buildId)
await Template.removeTags('js-first', 'stable')
assert.equal(await Template.exists('js-first:v1'), true)
assert.equal(await Template.exists('js-first:stable'), false)
await assert.rejects(Template.removeTags('js-first', 'default'), /can't be removed/)
await assert.rejects(Template.assignTags('js-nix', 'v1'), /404/)
const copy = await Sandbox.create('js-first:v1', { timeoutMs: 60_000 })
await copy.kill()

for (const name of ['js-first', second.snapshotId]) {
  assert.equal(await Sandbox.deleteSnapshot(name), true)
  assert.equal(await Sandbox.deleteSnapshot(name), false)
}
for (const sandbox of made) await sandbox.kill()
