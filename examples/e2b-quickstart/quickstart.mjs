// First steps with E2B's SDK. E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY name the server.

import { CommandExitError, NotFoundError, Sandbox, TimeoutError } from "e2b";

// If this program is killed before it can kill the sandbox, the sandbox ends after `timeoutMs`.
const sandbox = await Sandbox.create({ timeoutMs: 120_000, envs: { GREETING: "hello" } });
try {
  await sandbox.files.write("hello.sh", 'echo "$GREETING from $(whoami)"');
  const { stdout } = await sandbox.commands.run("sh hello.sh");
  process.stdout.write(stdout);

  // A command that fails.
  try {
    await sandbox.commands.run("cat missing.txt");
  } catch (error) {
    if (!(error instanceof CommandExitError)) throw error;
    process.stdout.write(`exit code ${error.exitCode}: ${error.stderr}`);
  }

  // A command that is too slow: the server ends it after `timeoutMs`.
  try {
    await sandbox.commands.run("sleep 60", { timeoutMs: 1_000 });
  } catch (error) {
    if (!(error instanceof TimeoutError)) throw error;
    console.log("too slow");
  }

  // Output as it is written.
  const loop = "for number in 1 2 3; do echo $number; done";
  await sandbox.commands.run(loop, { onStdout: (text) => process.stdout.write(text) });

  // A background process.
  const background = await sandbox.commands.run("sleep 60", { background: true });
  const pids = (await sandbox.commands.list()).map((other) => other.pid);
  console.log("running:", pids.includes(background.pid));
  await background.kill();

  // A file that does not exist.
  try {
    await sandbox.files.read("missing.txt");
  } catch (error) {
    if (!(error instanceof NotFoundError)) throw error;
    console.log("no such file");
  }
} finally {
  await sandbox.kill();
}

// A sandbox that is gone.
try {
  await Sandbox.connect(sandbox.sandboxId);
} catch (error) {
  if (!(error instanceof NotFoundError)) throw error;
  console.log("no such sandbox");
}
console.log("done");
