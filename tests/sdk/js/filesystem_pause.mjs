// Pauses of the file system alone and reboots, through the JavaScript SDK; the twin of ../test_filesystem_pause.py.

import assert from 'node:assert/strict'

import { Sandbox } from 'e2b'

import { runIn } from './support.mjs'

const bootId = (sandbox) => sandbox.files.read('/proc/sys/kernel/random/boot_id')

async function isRebooted(sandbox, lastBoot) {
  assert.notEqual(await bootId(sandbox), lastBoot)
  const shown = await sandbox.commands.run('cat file; echo $GREETING $(hostname)')
  assert.equal(shown.stdout, `kept\nhello ${sandbox.sandboxId}\n`)
}

async function pausesWithoutMemory(sandbox) {
  await sandbox.commands.run('echo kept > file')
  const before = await bootId(sandbox)
  assert(await sandbox.pause({ keepMemory: false }))
  assert(!(await sandbox.pause({ keepMemory: false })))
  assert.equal((await sandbox.getInfo()).state, 'paused')
  await isRebooted(await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 }), before)
}

async function reboots(sandbox) {
  const before = await bootId(sandbox)
  assert(await sandbox.pause())
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000, onResume: 'reboot' })
  await isRebooted(again, before)
}

async function pausesAtTheDeadline() {
  const lifecycle = { onTimeout: { action: 'pause', keepMemory: false } }
  const sandbox = await Sandbox.create('base', { timeoutMs: 60_000, lifecycle })
  assert.deepEqual((await sandbox.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
  await sandbox.kill()
}

await runIn([pausesWithoutMemory, reboots, pausesAtTheDeadline])
