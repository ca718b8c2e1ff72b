import assert from 'node:assert'
import { Sandbox } from 'e2b'

const sandbox = await Sandbox.create({ timeoutMs: 60_000, metadata: { user: 'a b' }, envs: { GREETING: 'hello' } })
let user
try {
  assert(await sandbox.isRunning())
  assert.equal((await sandbox.commands.run('echo $GREETING')).stdout, 'hello\n')
  const [name, home] = (await sandbox.commands.run('whoami; pwd')).stdout.split('\n')
  user = name
  assert.equal(home, '/home/user')
  await assert.rejects(sandbox.commands.run('echo bad >&2; exit 3'), (error) => {
    assert.equal(error.exitCode, 3)
    assert.equal(error.stderr, 'bad\n')
    return true
  })
  let lines = ''
  await sandbox.commands.run('for i in 1 2 3; do echo $i; done', { onStdout: (data) => { lines += data } })
  assert.equal(lines, '1\n2\n3\n')
  const background = await sandbox.commands.run('sleep 100', { background: true })
  assert((await sandbox.commands.list()).some((process) => process.pid === background.pid))
  assert(await background.kill())

  await sandbox.files.write('notes/a.txt', 'some text')
  assert.equal(await sandbox.files.read('notes/a.txt'), 'some text')
  assert.deepEqual((await sandbox.files.list('notes')).map((entry) => entry.name), ['a.txt'])
  assert(await sandbox.files.exists('notes/a.txt'))
  assert(await sandbox.files.makeDir('notes/more'))
  assert(!(await sandbox.files.makeDir('notes/more')))
  await sandbox.files.rename('notes/a.txt', 'notes/b.txt')
  await assert.rejects(sandbox.files.read('notes/a.txt'))
  await sandbox.files.remove('notes')

  const paginator = Sandbox.list()
  const page = await paginator.nextItems()
  assert(page.some((item) => item.sandboxId === sandbox.sandboxId))
  await sandbox.setTimeout(120_000)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo again')).stdout, 'again\n')
} finally {
  await sandbox.kill()
}
assert(!(await sandbox.isRunning()))
console.log(`${user}: all done`)
