// A program of an E2B user with the JavaScript SDK; the twin of ../scenario.py.
// Run with E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY set; exits with 0 if everything behaved.

import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

import { CommandExitError, FileType, NotFoundError, Sandbox } from 'e2b'

async function eventually(condition, seconds = 20) {
  const end = Date.now() + seconds * 1000
  while (!(await condition())) {
    assert(Date.now() < end, "it didn't come true in time")
    await sleep(100)
  }
}

async function commands(sandbox) {
  const result = await sandbox.commands.run('echo out; echo err >&2')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
  await assert.rejects(sandbox.commands.run('exit 7'), (error) => {
    assert(error instanceof CommandExitError)
    assert.equal(error.exitCode, 7)
    return true
  })
  const greeting = await sandbox.commands.run('echo $GREETING $MINE', { envs: { MINE: 'mine' } })
  assert.equal(greeting.stdout, 'hello mine\n')
  assert.equal((await sandbox.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
  assert.equal((await sandbox.commands.run('whoami', { user: 'root' })).stdout, 'root\n')

  const handle = await sandbox.commands.run('sleep 300', { background: true })
  const running = async () => (await sandbox.commands.list()).map((process) => process.pid)
  assert((await running()).includes(handle.pid))
  assert(await sandbox.commands.kill(handle.pid))
  assert(!(await sandbox.commands.kill(999999)))
  await eventually(async () => !(await running()).includes(handle.pid))

  const reader = await sandbox.commands.run('read line; echo got $line', { background: true, stdin: true })
  await sandbox.commands.sendStdin(reader.pid, 'input\n')
  assert.equal((await reader.wait()).stdout, 'got input\n')
}

async function files(sandbox) {
  const fs = sandbox.files
  await fs.makeDir('work')
  const seen = new Set()
  const watch = await fs.watchDir('work', (event) => seen.add(event.name))
  await fs.write('work/text', 'täxt')
  await fs.write('work/bytes', Uint8Array.from({ length: 256 }, (_, i) => i).buffer)
  await fs.write('work/empty', '')
  assert.equal(await fs.read('work/text'), 'täxt')
  assert.deepEqual([...(await fs.read('work/bytes', { format: 'bytes' }))], Array.from({ length: 256 }, (_, i) => i))
  assert.equal(await fs.read('work/empty'), '')
  const entries = await fs.list('work')
  assert.deepEqual(entries.map((entry) => entry.name).sort(), ['bytes', 'empty', 'text'])
  assert.equal(entries[0].type, FileType.FILE)
  await fs.rename('work/text', 'work/moved')
  assert(await fs.exists('work/moved'))
  assert(!(await fs.exists('work/text')))
  await fs.remove('work/moved')
  assert(!(await fs.exists('work/moved')))
  await assert.rejects(fs.read('no/such/file'), NotFoundError)
  await eventually(() => ['text', 'bytes', 'empty', 'moved'].every((name) => seen.has(name)))
  await watch.stop()
}

async function terminal(sandbox) {
  const decoder = new TextDecoder()
  let output = ''
  const pty = await sandbox.pty.create({ rows: 24, cols: 80, onData: (data) => { output += decoder.decode(data) } })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
  await pty.wait()
  assert(output.includes('24 80'), output)
}

async function records(sandbox) {
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.deepEqual(info.metadata, { purpose: 'a b&c=d' })
  const query = { metadata: { purpose: 'a b&c=d' }, state: ['running'] }
  const listed = await Sandbox.list({ query }).nextItems()
  assert.deepEqual(listed.map((item) => item.sandboxId), [sandbox.sandboxId])
  await sandbox.setTimeout(1_000_000)
  const left = (await sandbox.getInfo()).endAt.getTime() - Date.now()
  assert(left > 900_000 && left <= 1_001_000, `${left}`)
  await assert.rejects(Sandbox.connect('inosuchsandbox0000000'), /not found/)
  await assert.rejects(Sandbox.create('no-such-template'), /not found/)
}

const VARIABLES = `
import os, socket
kept = 0
server = socket.create_server(("127.0.0.1", 9999))
while True:
    peer, _ = server.accept()
    kept += 1
    peer.sendall(f"{os.getpid()} {kept}".encode())
    peer.close()
`
const ASK = 'exec 3<>/dev/tcp/127.0.0.1/9999; cat <&3'

async function life(sandbox) {
  await sandbox.files.write('keeper.py', VARIABLES)
  await sandbox.files.write('file', 'before the pause')
  await sandbox.commands.run('python3 keeper.py', { background: true, timeoutMs: 0 })
  const ask = async (who) => {
    const [pid, kept] = (await who.commands.run(ASK)).stdout.split(' ')
    return [pid, Number(kept)]
  }
  await sandbox.commands.run(`until bash -c '${ASK}' >/dev/null 2>&1; do sleep 0.1; done`)
  const [pid, kept] = await ask(sandbox)
  await sandbox.pause()
  assert(!(await sandbox.isRunning()))
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.deepEqual(await ask(again), [pid, kept + 1])
  assert.equal(await again.files.read('file'), 'before the pause')

  const snapshot = await again.createSnapshot()
  const copy = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 120_000 })
  assert.deepEqual(await ask(copy), [pid, kept + 2])
  await copy.kill()
  assert(await Sandbox.deleteSnapshot(snapshot.snapshotId))
  assert(!(await Sandbox.deleteSnapshot(snapshot.snapshotId)))

  const children = await again.fork({ count: 4 })
  assert.equal(new Set(children.map((child) => child.sandboxId)).size, 4)
  for (const [number, child] of children.entries()) {
    assert(child instanceof Sandbox)
    for (let extra = 0; extra <= number; extra++) {
      assert.deepEqual(await ask(child), [pid, kept + 2 + extra])
    }
    await child.files.write('mine', `${number}`)
  }
  assert(!(await again.files.exists('mine')))
  for (const [number, child] of children.entries()) {
    assert.equal(await child.files.read('mine'), `${number}`)
    assert(await child.kill())
  }
  assert.deepEqual(await ask(again), [pid, kept + 2])
}

const sandbox = await Sandbox.create('base', {
  timeoutMs: 300_000,
  metadata: { purpose: 'a b&c=d' },
  envs: { GREETING: 'hello' },
})
for (const part of [commands, files, terminal, records, life]) {
  const started = Date.now()
  await part(sandbox)
  console.log(`${part.name}: ${((Date.now() - started) / 1000).toFixed(1)} s`)
}
assert(await sandbox.kill())
assert(!(await sandbox.kill()))
