from e2b import NotFoundException, Sandbox

sandbox = Sandbox.create(timeout=60, metadata={"user": "a b"}, envs={"GREETING": "hello"})
try:
    assert sandbox.is_running()
    assert sandbox.commands.run("echo $GREETING").stdout == "hello\n"
    user, home = sandbox.commands.run("whoami; pwd").stdout.splitlines()
    assert home == "/home/user"
    try:
        sandbox.commands.run("echo bad >&2; exit 3")
        raise AssertionError("it must fail")
    except Exception as failed:
        assert failed.exit_code == 3 and failed.stderr == "bad\n", failed
    lines = []
    sandbox.commands.run("for i in 1 2 3; do echo $i; done", on_stdout=lines.append)
    assert "".join(lines) == "1\n2\n3\n", lines
    background = sandbox.commands.run("sleep 100", background=True)
    assert background.pid in [process.pid for process in sandbox.commands.list()]
    assert background.kill()

    sandbox.files.write("notes/a.txt", "some text")
    assert sandbox.files.read("notes/a.txt") == "some text"
    assert [entry.name for entry in sandbox.files.list("notes")] == ["a.txt"]
    assert sandbox.files.exists("notes/a.txt")
    assert sandbox.files.make_dir("notes/more")
    assert not sandbox.files.make_dir("notes/more")
    sandbox.files.rename("notes/a.txt", "notes/b.txt")
    try:
        sandbox.files.read("notes/a.txt")
        raise AssertionError("it must fail")
    except NotFoundException:
        pass
    watch = sandbox.files.watch_dir("notes")
    sandbox.files.write("notes/c.txt", "x")
    assert [event.name for event in watch.get_new_events()] == ["c.txt"] * 3
    watch.stop()
    sandbox.files.remove("notes")

    found = Sandbox.list()
    page = found.next_items() if hasattr(found, "next_items") else found
    assert sandbox.sandbox_id in [item.sandbox_id for item in page]
    sandbox.set_timeout(120)
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.commands.run("echo again").stdout == "again\n"
finally:
    assert sandbox.kill()
assert not sandbox.is_running()
assert not sandbox.kill()
print(f"{user}: all done")
