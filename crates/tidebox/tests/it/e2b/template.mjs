import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import { Sandbox, Template } from 'e2b'

const folder = mkdtempSync(`${import.meta.dirname}/context-`)
mkdirSync(`${folder}/src`)
writeFileSync(`${folder}/src/hello.txt`, 'hello')

const template = Template({ fileContextPath: folder })
  .fromTemplate('base')
  .setEnvs({ NAME: 'tide' })
  .setWorkdir('/home/user/app')
  .copy('src', '.')
  .runCmd('echo $NAME > name.txt')
  .setStartCmd('cat hello.txt > started.txt; sleep 1000', 'test -s started.txt')
await Template.build(template, { alias: 'greeter', cpuCount: 1, memoryMB: 256 })
const sandbox = await Sandbox.create('greeter')
console.log((await sandbox.commands.run('cat started.txt name.txt; pwd; echo $NAME')).stdout)
await sandbox.kill()
