// Keys and tokens, through the JavaScript SDK; the twin of ../test_secure.py.

import assert from 'node:assert/strict'

import { AuthenticationError, NotFoundError, Sandbox, SandboxNotFoundError } from 'e2b'

import { runIn } from './support.mjs'

const wrong = { apiKey: `e2b_${'0'.repeat(40)}` }
const nobody = 'inosuchsandbox0000000'

async function aWrongKeyIsRefused(sandbox) {
  await assert.rejects(Sandbox.create('base', wrong), AuthenticationError)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId, wrong), AuthenticationError)
  await assert.rejects(Sandbox.kill(sandbox.sandboxId, wrong), AuthenticationError)
  await assert.rejects(Sandbox.getInfo(sandbox.sandboxId, wrong), AuthenticationError)
}

async function theAgentWantsTheToken(sandbox) {
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983', 'Content-Type': 'application/json' }
  const list = (more) =>
    fetch(`${process.env.E2B_SANDBOX_URL}/process.Process/List`, {
      method: 'POST',
      body: '{}',
      headers: { ...headers, ...more },
    })
  for (const more of [{}, { 'X-Access-Token': 'wrong' }]) {
    const answer = await list(more)
    assert.equal(answer.status, 401)
    assert.equal((await answer.json()).code, 401)
  }
  assert.equal((await list({ 'X-Access-Token': sandbox.envdAccessToken })).status, 200)
}

async function whatDoesNotExist() {
  await assert.rejects(Sandbox.connect(nobody), SandboxNotFoundError)
  await assert.rejects(Sandbox.getInfo(nobody), SandboxNotFoundError)
  await assert.rejects(Sandbox.setTimeout(nobody, 1000), SandboxNotFoundError)
  await assert.rejects(Sandbox.pause(nobody), NotFoundError)
  assert(!(await Sandbox.kill(nobody)))
}

async function trafficNeedsItsToken() {
  const sandbox = await Sandbox.create('base', { network: { allowPublicTraffic: false } })
  try {
    assert(sandbox.trafficAccessToken)
    await sandbox.commands.run('python3 -m http.server 3000', { background: true, timeoutMs: 0 })
    await sandbox.commands.run('until (echo > /dev/tcp/127.0.0.1/3000) 2>/dev/null; do sleep 0.1; done')
    const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '3000' }
    const url = process.env.E2B_SANDBOX_URL
    assert.equal((await fetch(url, { headers })).status, 403)
    const token = { 'E2B-Traffic-Access-Token': sandbox.trafficAccessToken }
    assert.equal((await fetch(url, { headers: { ...headers, ...token } })).status, 200)
  } finally {
    await sandbox.kill()
  }
}

await runIn([aWrongKeyIsRefused, theAgentWantsTheToken, whatDoesNotExist, trafficNeedsItsToken])
