// Calls tools with the official client: client.mjs MODE stdio PROGRAM ARGUMENT... | client.mjs MODE http URL KEY
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio'

const [mode, kind, ...words] = process.argv.slice(2)
const transport =
  kind === 'stdio'
    ? new StdioClientTransport({ command: words[0], args: words.slice(1), env: process.env })
    : new StreamableHTTPClientTransport(new URL(words[0]), {
        requestInit: { headers: { Authorization: `Bearer ${words[1]}` } },
      })
const client = new Client({ name: 'test', version: '1' }, { versionNegotiation: { mode } })
await client.connect(transport)

const where = {}
const call = (name, args = {}, options = {}) =>
  client.callTool({ name, arguments: { ...where, ...args } }, options)
const text = (result) =>
  result.content.filter((block) => block.type === 'text').map((block) => block.text).join('\n')

const { tools } = await client.listTools()
console.log('tools', tools.length)
if (kind === 'http') {
  const made = await client.callTool({ name: 'create_sandbox', arguments: { ttl_minutes: 10 } })
  where.sandbox = text(made).split(' ')[1].replace(':', '')
}

assert.equal(text(await call('run_code', { code: '6 * 7' })), '42')
assert.ok((await call('run_code', {})).isError, 'an argument is missing')
await assert.rejects(call('fly'), /run_code/)

const reports = []
const command = 'for i in 1 2 3 4 5 6 7 8 9 10; do echo step $i; sleep 0.5; done'
const long = await call('run_command', { command }, { onprogress: (report) => reports.push(report) })
assert.match(text(long), /step 10\n\[exit code 0\]/)
assert.ok(reports.length >= 2, 'progress is reported')

// A caller that leaves ends its command.
const leaving = new AbortController()
const left = call('run_command', { command: 'touch on; sleep 432' }, { signal: leaving.signal })
left.catch(() => {})
while (!text(await call('list_files')).includes('file 0 on')) await sleep(50)
leaving.abort()
await assert.rejects(left)
const until = Date.now() + 10_000
const search = { command: "ps -eo args | grep '[s]leep 432' || true" }
while (text(await call('run_command', search)).includes('432')) {
  assert.ok(Date.now() < until, 'the command runs on')
  await sleep(100)
}

await call('write_file', { path: '/workspace/a b#.txt', content: 'äöü' })
const sandbox = text(await client.callTool({ name: 'list_sandboxes', arguments: {} })).split(':')[0]
const read = await client.readResource({ uri: `tidebox://${sandbox}/workspace/a%20b%23.txt` })
assert.equal(read.contents[0].text, 'äöü')
if (kind === 'http') await call('destroy_sandbox')
await client.close()
console.log('done')
