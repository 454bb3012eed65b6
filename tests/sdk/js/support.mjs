// What the scripts for the JavaScript SDK have in common.

import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

import { Sandbox } from 'e2b'

export async function eventually(condition, seconds = 20) {
  const end = Date.now() + seconds * 1000
  while (!(await condition())) {
    assert(Date.now() < end, "it didn't come true in time")
    await sleep(50)
  }
}

// Runs the parts of a script one after the other in one sandbox.
export async function runIn(parts, options = {}) {
  const sandbox = await Sandbox.create('base', { timeoutMs: 600_000, envs: { GREETING: 'hello' }, ...options })
  try {
    for (const part of parts) {
      const started = Date.now()
      await part(sandbox)
      console.log(`${part.name}: ${((Date.now() - started) / 1000).toFixed(1)} s`)
    }
  } finally {
    await sandbox.kill()
  }
}
