"""Makes a sandbox, runs a command in it and reads a file, with the generated client."""

import sys

from tidebox_api import AuthenticatedClient
from tidebox_api.api.exec_ import exec_command
from tidebox_api.api.files import read_file
from tidebox_api.api.sandboxes import create_sandbox, delete_sandbox, get_sandbox
from tidebox_api.models import ErrorBody, ExecRequest, ExecResult, Sandbox, SpawnRequest

with AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2]) as client:
    sandbox = create_sandbox.sync(client=client, body=SpawnRequest(ttl="10m"))
    assert isinstance(sandbox, Sandbox), sandbox
    command = ExecRequest(command="printf hello > /tmp/file; echo done")
    ran = exec_command.sync(sandbox.id, client=client, body=command)
    assert isinstance(ran, ExecResult), ran
    assert (ran.exit_code, ran.stdout) == (0, "done\n"), ran
    file = read_file.sync_detailed(sandbox.id, client=client, path="/tmp/file")
    assert file.content == b"hello", file
    delete_sandbox.sync(sandbox.id, client=client)
    gone = get_sandbox.sync(sandbox.id, client=client)
    assert isinstance(gone, ErrorBody) and gone.code == "not_found", gone
    print(sandbox.created_at.isoformat())
