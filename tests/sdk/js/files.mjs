// Files, through the JavaScript SDK; the twin of ../test_files.py.

import assert from 'node:assert/strict'

import { FileNotFoundError, FileType, InvalidArgumentError } from 'e2b'

import { runIn } from './support.mjs'

const bytes = Uint8Array.from({ length: 200_000 }, (_, i) => i % 251)
const uploads = { multipart: {}, octets: { useOctetStream: true }, gzip: { gzip: true } }

function stream(chunks) {
  return new ReadableStream({
    start(controller) {
      chunks.forEach((chunk) => controller.enqueue(chunk))
      controller.close()
    },
  })
}

async function contents(sandbox) {
  for (const [name, options] of Object.entries(uploads)) {
    const written = await sandbox.files.write(`up/${name}`, 'täxt', options)
    assert.equal(written.path, `/home/user/up/${name}`)
    for (const gzip of [false, true]) {
      assert.equal(await sandbox.files.read(`up/${name}`, { gzip }), 'täxt')
    }
    await sandbox.files.write(`up/${name}`, bytes.buffer, options)
    assert.deepEqual(await sandbox.files.read(`up/${name}`, { format: 'bytes' }), bytes)
    await sandbox.files.write(`up/${name}`, new Blob([bytes]), options)
    assert.equal((await sandbox.files.read(`up/${name}`, { format: 'blob' })).size, bytes.length)
    await sandbox.files.write(`up/${name}`, stream([bytes, bytes]), options)
    let size = 0
    for await (const chunk of await sandbox.files.read(`up/${name}`, { format: 'stream' })) size += chunk.length
    assert.equal(size, 2 * bytes.length)
    await sandbox.files.write(`up/${name}`, '', options)
    assert.equal(await sandbox.files.read(`up/${name}`), '')
  }
  const entries = await sandbox.files.writeFiles([
    { path: 'spaces and ü/日本', data: 'one' },
    { path: '/tmp/absolute', data: 'two' },
    { path: '~/home', data: 'three' },
  ])
  assert.deepEqual(entries.map((entry) => entry.path), ['/home/user/spaces and ü/日本', '/tmp/absolute', '/home/user/home'])
}

async function oddNames(sandbox) {
  for (const name of ['n'.repeat(255), 'a\nb', '日本 🚀', '-rf', ' a ', '\'"`\\', 'a+b&c=d#e?f%41%2F', '...']) {
    for (const options of Object.values(uploads)) {
      const path = `/home/user/odd/${name}`
      assert.equal((await sandbox.files.write(path, 'x', options)).path, path)
      assert.equal(await sandbox.files.read(path), 'x')
      assert.deepEqual((await sandbox.files.list('odd')).map((entry) => entry.name), [name])
      await sandbox.files.remove(path)
      assert(!(await sandbox.files.exists(path)))
    }
  }
  await assert.rejects(sandbox.files.write('n'.repeat(256), 'x'), InvalidArgumentError)
}

async function entries(sandbox) {
  await sandbox.files.write('tagged', 'x', { metadata: { source: 'unit test' } })
  const info = await sandbox.files.getInfo('tagged')
  assert.deepEqual(info.metadata, { source: 'unit test' })
  assert.deepEqual([info.owner, info.permissions, info.size, info.type], ['user', '-rw-r--r--', 1, FileType.FILE])
  await sandbox.commands.run('ln -s tagged link')
  assert.equal((await sandbox.files.getInfo('link')).symlinkTarget, '/home/user/tagged')
  assert.equal((await sandbox.files.write('file', 'x', { user: 'root' })).path, '/root/file')
  assert(await sandbox.files.makeDir('new/folder'))
  assert(!(await sandbox.files.makeDir('new/folder')))
  assert.deepEqual((await sandbox.files.list('new', { depth: 2 })).map((entry) => entry.path), ['/home/user/new/folder'])
  assert.equal((await sandbox.files.rename('tagged', '/dev/shm/moved')).path, '/dev/shm/moved')
  await assert.rejects(sandbox.files.read('none'), FileNotFoundError)
  await assert.rejects(sandbox.files.read('new'), InvalidArgumentError)
  await assert.rejects(sandbox.files.list('none'))
}

async function signedUrls(sandbox) {
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
  await sandbox.files.write('file', 'content')
  const url = await sandbox.downloadUrl('file', { useSignatureExpiration: 60 })
  assert.equal(await (await fetch(url, { headers })).text(), 'content')
  const expired = await fetch(await sandbox.downloadUrl('file', { useSignatureExpiration: -5 }), { headers })
  assert.equal(await expired.text(), '{"code":401,"message":"signature is already expired"}')
  const body = new FormData()
  body.append('file', new Blob(['uploaded']), 'ignored')
  const posted = await fetch(await sandbox.uploadUrl('posted'), { method: 'POST', headers, body })
  assert.equal(posted.status, 200)
  assert.equal(await sandbox.files.read('posted'), 'uploaded')
}

await runIn([contents, oddNames, entries, signedUrls])
