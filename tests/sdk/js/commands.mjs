// Commands, through the JavaScript SDK; the twin of ../test_commands.py.

import assert from 'node:assert/strict'

import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, TimeoutError } from 'e2b'

import { eventually, runIn } from './support.mjs'

async function output(sandbox) {
  const seen = []
  const result = await sandbox.commands.run('echo out; echo err >&2; echo $GREETING $MINE; pwd', {
    envs: { MINE: 'm e' },
    cwd: '/tmp',
    onStdout: (text) => { seen.push(text) },
  })
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\nhello m e\n/tmp\n', 'err\n', 0])
  assert.equal(seen.join(''), result.stdout)
  await assert.rejects(sandbox.commands.run('exit 7'), (error) => error instanceof CommandExitError && error.exitCode === 7)
  await assert.rejects(sandbox.commands.run('true', { cwd: '/no/such' }), InvalidArgumentError)
  await assert.rejects(sandbox.commands.run('true', { user: 'nobody-knows-him' }), AuthenticationError)
  await assert.rejects(sandbox.commands.connect(999_999), NotFoundError)
  const much = await sandbox.commands.run(`python3 -c "print('é' * 300_001, end='')"`)
  assert.equal(much.stdout, 'é'.repeat(300_001))
}

async function input(sandbox) {
  const reader = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
  await sandbox.commands.sendStdin(reader.pid, 'täxt\n')
  await sandbox.commands.sendStdin(reader.pid, new TextEncoder().encode('bytes\n'))
  await sandbox.commands.closeStdin(reader.pid)
  assert.equal((await reader.wait()).stdout, 'täxt\nbytes\nend\n')
}

async function reconnect(sandbox) {
  const handle = await sandbox.commands.run('until [ -e go ]; do sleep 0.1; done; echo later; exit 3', {
    background: true,
    timeoutMs: 0,
  })
  await handle.disconnect()
  const again = await sandbox.commands.connect(handle.pid)
  await sandbox.files.write('go', '')
  await assert.rejects(again.wait(), (error) => error.exitCode === 3 && error.stdout === 'later\n')
}

async function ends(sandbox) {
  await assert.rejects(sandbox.commands.run('sleep 4711 & sleep 4711', { timeoutMs: 1000 }), TimeoutError)
  const left = async () => (await sandbox.commands.run("pgrep -fc '^sleep 4711' || true")).stdout === '0\n'
  await eventually(left, 10)
  const handle = await sandbox.commands.run('sleep 300', { background: true })
  assert(await sandbox.commands.kill(handle.pid))
  await assert.rejects(handle.wait(), (error) => error.exitCode === -1 && error.error === 'signal: killed')
  assert(!(await sandbox.commands.kill(handle.pid)))
}

async function aBrokenStream() {
  const doomed = await Sandbox.create('base')
  const handle = await doomed.commands.run('sleep 600', { background: true, timeoutMs: 0 })
  const ended = assert.rejects(handle.wait(), TimeoutError)
  assert(await doomed.kill())
  await ended
}

await runIn([output, input, reconnect, ends, aBrokenStream])
