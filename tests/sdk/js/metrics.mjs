// Metrics, through the JavaScript SDK; the twin of ../test_metrics_logs.py. The SDK has no method for logs.

import assert from 'node:assert/strict'

import { Sandbox, SandboxNotFoundError } from 'e2b'

import { eventually, runIn } from './support.mjs'

async function areThereAtOnce(sandbox) {
  const [metrics] = await sandbox.getMetrics()
  assert.equal(metrics.cpuCount, 2)
  assert(metrics.cpuUsedPct >= 0 && metrics.cpuUsedPct <= 100)
  assert(metrics.memUsed > 0 && metrics.memUsed < metrics.memTotal)
  assert(metrics.memCache >= 0 && metrics.memCache < metrics.memTotal)
  assert(metrics.diskUsed > 0 && metrics.diskUsed < metrics.diskTotal)
  assert(Math.abs(Date.now() - metrics.timestamp.getTime()) < 60_000)
}

async function becomeAHistory(sandbox) {
  const [first] = await sandbox.getMetrics()
  const start = new Date(first.timestamp.getTime() + 1000)
  await eventually(async () => (await sandbox.getMetrics({ start })).length >= 2, 60)
  for (const later of await sandbox.getMetrics({ start })) assert(later.timestamp > first.timestamp)
  const end = new Date(first.timestamp.getTime() - 60_000)
  assert.deepEqual(await sandbox.getMetrics({ end }), [])
}

async function ofNobody() {
  await assert.rejects(Sandbox.getMetrics('inosuchsandbox0000000'), SandboxNotFoundError)
}

await runIn([areThereAtOnce, becomeAHistory, ofNobody])
