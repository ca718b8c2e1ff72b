import { Sandbox } from '@e2b/code-interpreter'

const sandbox = await Sandbox.create({ envs: { COLOR: 'red' } })
try {
  await sandbox.runCode('x = 1')
  const execution = await sandbox.runCode('x += 1; x')
  console.log(execution.text, execution.executionCount)
  let said = ''
  const loud = await sandbox.runCode(
    "import os, sys; print(os.environ['COLOR'], file=sys.stderr); print('hello')",
    { onStdout: (message) => { said += message.line }, envs: { COLOR: 'blue' } }
  )
  console.log(said.trim(), loud.logs.stderr[0].trim())
  const failed = await sandbox.runCode('1 / 0')
  console.log(failed.error.name, failed.error.value)
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  console.log((await sandbox.runCode('import os; os.getcwd()', { context })).text)
  console.log((await sandbox.runCode('const n = 41; n + 1', { language: 'js' })).text)
  console.log((await sandbox.runCode('echo $COLOR', { language: 'bash' })).logs.stdout[0].trim())
  const shown = (await sandbox.runCode("display({'text/html': '<b>hi</b>'}, raw=True)")).results[0]
  console.log(shown.html, Boolean(shown.isMainResult))
} finally {
  await sandbox.kill()
}
