// Terminals, through the JavaScript SDK; the twin of ../test_pty.py.

import assert from 'node:assert/strict'

import { NotFoundError } from 'e2b'

import { eventually, runIn } from './support.mjs'

const encode = (text) => new TextEncoder().encode(text)

function screen() {
  const decoder = new TextDecoder()
  const self = { text: '', onData: (data) => { self.text += decoder.decode(data, { stream: true }) } }
  self.shows = (expected) => eventually(() => self.text.includes(expected))
  return self
}

async function sizes(sandbox) {
  const first = screen()
  const pty = await sandbox.pty.create({ rows: 33, cols: 101, onData: first.onData, envs: { MINE: 'täxt' }, timeoutMs: 0 })
  await sandbox.pty.sendInput(pty.pid, encode("stty size; echo [$MINE][$TERM]; trap 'echo resized $(stty size)' WINCH\n"))
  await first.shows('33 101')
  await first.shows('[täxt][xterm-256color]')
  await sandbox.pty.resize(pty.pid, { rows: 50, cols: 132 })
  await first.shows('resized 50 132')
  await pty.disconnect()

  const second = screen()
  const again = await sandbox.pty.connect(pty.pid, { onData: second.onData })
  await sandbox.pty.sendInput(pty.pid, encode('echo [$((6 * 7))]; exit 5\n'))
  await second.shows('[42]')
  await assert.rejects(again.wait(), (error) => error.exitCode === 5)
}

async function kills(sandbox) {
  const shown = screen()
  const pty = await sandbox.pty.create({ rows: 24, cols: 80, onData: shown.onData })
  await sandbox.pty.sendInput(pty.pid, encode('sleep 4713\n'))
  const running = async () => (await sandbox.commands.run("pgrep -c -fx 'sleep 4713' || true")).stdout.trim()
  await eventually(async () => (await running()) === '1')
  assert(await sandbox.pty.kill(pty.pid))
  await eventually(async () => (await running()) === '0')
  assert(!(await sandbox.pty.kill(pty.pid)))
  await assert.rejects(sandbox.pty.resize(999_999, { rows: 1, cols: 1 }), NotFoundError)
}

await runIn([sizes, kills])
