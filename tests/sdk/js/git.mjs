// The git helpers of the JavaScript SDK, against a bare repository in the sandbox; the twin of ../test_git.py.

import assert from 'node:assert/strict'

import { CommandExitError } from 'e2b'

import { runIn } from './support.mjs'

const [origin, work, other] = ['/home/user/origin.git', '/home/user/work', '/home/user/other']

async function aDayWithGit(sandbox) {
  const { git, files } = sandbox
  await git.configureUser('An Agent', 'agent@example.com')
  assert.equal(await git.getConfig('user.email'), 'agent@example.com')
  await git.init(origin, { bare: true, initialBranch: 'main' })
  await git.init(work, { initialBranch: 'main' })
  await git.remoteAdd(work, 'origin', origin)
  assert.equal(await git.remoteGet(work, 'origin'), origin)
  assert.equal(await git.remoteGet(work, 'none'), undefined)

  await files.write(`${work}/file`, 'one\n')
  const status = await git.status(work)
  assert(!status.isClean)
  assert.deepEqual(status.fileStatus.map((entry) => entry.name), ['file'])
  await git.add(work)
  await git.commit(work, 'The first one', { authorName: 'Somebody', authorEmail: 'somebody@example.com' })
  await git.push(work, { remote: 'origin', branch: 'main' })
  assert((await git.status(work)).isClean)

  await git.clone(origin, { path: other })
  await git.createBranch(other, 'feature')
  const branches = await git.branches(other)
  assert.equal(branches.currentBranch, 'feature')
  assert.deepEqual([...branches.branches].sort(), ['feature', 'main'])
  await git.checkoutBranch(other, 'main')
  await git.deleteBranch(other, 'feature')
  await files.write(`${other}/file`, 'two\n')
  await git.add(other, { files: ['file'] })
  await git.commit(other, 'The second one')
  await git.push(other)
  await git.pull(work, { remote: 'origin', branch: 'main' })
  assert.equal(await files.read(`${work}/file`), 'two\n')

  await files.write(`${work}/file`, 'thrown away\n')
  await git.restore(work, { paths: ['file'] })
  assert.equal(await files.read(`${work}/file`), 'two\n')
  await git.reset(work, { mode: 'hard', target: 'HEAD~1' })
  assert.equal(await files.read(`${work}/file`), 'one\n')
  await git.setConfig('core.pager', 'cat', { scope: 'local', path: work })
  assert.equal(await git.getConfig('core.pager', { scope: 'local', path: work }), 'cat')
  await git.dangerouslyAuthenticate({ username: 'agent', password: 'secret', host: 'git.example.com' })
  assert.match(await files.read('/home/user/.git-credentials'), /git\.example\.com/)
}

async function aRepositoryThatIsNotThere(sandbox) {
  await assert.rejects(sandbox.git.clone('/home/user/none.git', { path: '/home/user/nowhere' }), CommandExitError)
}

await runIn([aDayWithGit, aRepositoryThatIsNotThere])
