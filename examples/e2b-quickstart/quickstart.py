"""First steps with E2B's SDK. E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY name the server."""

from e2b import CommandExitException, NotFoundException, Sandbox, TimeoutException

# The `with` statement kills the sandbox. If this program is killed first, the sandbox ends after `timeout` seconds.
with Sandbox.create(timeout=120, envs={"GREETING": "hello"}) as sandbox:
    sandbox.files.write("hello.sh", 'echo "$GREETING from $(whoami)"')
    print(sandbox.commands.run("sh hello.sh").stdout, end="")

    # A command that fails.
    try:
        sandbox.commands.run("cat missing.txt")
    except CommandExitException as error:
        print(f"exit code {error.exit_code}: {error.stderr}", end="")

    # A command that is too slow: the server ends it after `timeout` seconds.
    try:
        sandbox.commands.run("sleep 60", timeout=1)
    except TimeoutException:
        print("too slow")

    # Output as it is written.
    sandbox.commands.run("for number in 1 2 3; do echo $number; done", on_stdout=lambda text: print(text, end=""))

    # A background process.
    process = sandbox.commands.run("sleep 60", background=True)
    print("running:", process.pid in [other.pid for other in sandbox.commands.list()])
    process.kill()

    # A file that does not exist.
    try:
        sandbox.files.read("missing.txt")
    except NotFoundException:
        print("no such file")

# A sandbox that is gone.
try:
    Sandbox.connect(sandbox.sandbox_id)
except NotFoundException:
    print("no such sandbox")
print("done")
