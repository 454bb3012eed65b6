// Deadlines of sandboxes and of commands, through the JavaScript SDK; the twin of ../test_timeouts.py.

import assert from 'node:assert/strict'

import { Sandbox, SandboxError, TimeoutError } from 'e2b'

import { eventually, runIn } from './support.mjs'

const left = async (sandbox) => ((await sandbox.getInfo()).endAt.getTime() - Date.now()) / 1000

async function theDeadlineCanBeMoved(sandbox) {
  await sandbox.setTimeout(1_000_000)
  assert((await left(sandbox)) > 900)
  await sandbox.setTimeout(600_000)
  assert((await left(sandbox)) <= 601)
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  assert((await left(sandbox)) > 300)
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 2_000_000 })
  assert((await left(sandbox)) > 1500)
  for (const wrong of [0, -1000, 10 ** 12]) {
    await assert.rejects(sandbox.setTimeout(wrong), /400/)
    await assert.rejects(Sandbox.create('base', { timeoutMs: wrong }), SandboxError)
  }
}

async function aSandboxIsPausedAtItsDeadline() {
  const short = await Sandbox.create('base', { timeoutMs: 60_000 })
  await short.files.write('file', 'kept')
  await short.setTimeout(1000)
  await eventually(async () => (await short.getInfo()).state === 'paused', 60)
  assert(!(await short.isRunning()))
  const again = await Sandbox.connect(short.sandboxId, { timeoutMs: 60_000 })
  assert.equal(await again.files.read('file'), 'kept')
  assert(await again.kill())
}

async function aSandboxIsKilledAtItsDeadlineIfAskedFor() {
  const short = await Sandbox.create('base', { timeoutMs: 2000, lifecycle: { onTimeout: 'kill' } })
  await eventually(async () => !(await Sandbox.list().nextItems()).some((each) => each.sandboxId === short.sandboxId), 60)
  assert(!(await short.kill()))
}

async function aCommandEndsAtItsTimeout(sandbox) {
  await assert.rejects(sandbox.commands.run('sleep 4711', { timeoutMs: 1000 }), TimeoutError)
  const running = async () => (await sandbox.commands.list()).some((each) => each.args.includes('sleep 4711'))
  await eventually(async () => !(await running()))
}

await runIn([
  theDeadlineCanBeMoved,
  aSandboxIsPausedAtItsDeadline,
  aSandboxIsKilledAtItsDeadlineIfAskedFor,
  aCommandEndsAtItsTimeout,
])
