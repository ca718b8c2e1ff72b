#!/usr/bin/python3
# A Firecracker without machines. It answers on its API in the words of the real one, and connects the
# ports of the vsock: the first to itself, the second to AGENT, the socket of an agent that the test serves.
import json, os, socket, sys, threading

AGENT, FAULT = "@AGENT@", "@FAULT@"
VSOCK = "agent.sock"
BOOT_PORT, AGENT_PORT = 1, 2
AFTER_START = "The requested operation is not supported after starting the microVM."

if "--version" in sys.argv:
    print("Firecracker v1.16.1")
    sys.exit(0)
if "--no-api" in sys.argv:
    # The words of the guest of some bytes.
    print("ABC", end="")
    sys.exit(0)

api_path = sys.argv[sys.argv.index("--api-sock") + 1]
lock = threading.Lock()
state = {"phase": "Not started", "drives": {}, "vsock": None, "kernel": None, "box": False, "streams": []}
# The first line of a file with the memory of a machine.
MEMORY = b"memory of a machine\n"


def listen(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    return listener


def end_streams():
    """Ends the connections of a machine that was written to files."""
    # The guest, which was not told to, never says that it has noted the end of its connections.
    state["deaf"] = not state.get("saved")
    if state.pop("saved", False):
        for connection in state["streams"]:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        state["streams"] = []


def load(body, running):
    """Makes the machine of a snapshot. A process that cannot ends."""
    if running or state["kernel"] or state["drives"]:
        raise ValueError("Loading a microVM snapshot not allowed after configuring boot-specific resources.")
    try:
        if FAULT == "load":
            raise ValueError("CPU template is not supported")
        with open(body["mem_backend"]["backend_path"], "rb") as memory:
            assert memory.readline() == MEMORY
        with open(body["snapshot_path"]) as saved:
            state.update(json.load(saved))
        for name, is_read_only in state["drives"].items():
            os.close(os.open(name, os.O_RDONLY if is_read_only else os.O_RDWR))
        state["vsock"] = listen(body.get("vsock_override", {"uds_path": state["vsock"]})["uds_path"])
    except Exception as reason:
        state["fails"] = True
        raise ValueError(f"Load snapshot error: {reason}")
    state["phase"] = "Running" if body["resume_vm"] else "Paused"
    threading.Thread(target=accept, args=(state["vsock"], guest), daemon=True).start()


def change(method, path, body):
    """Changes the machine; raises the reason of a refusal."""
    parts = path.strip("/").split("/")
    running = state["phase"] != "Not started"
    if method == "PATCH" and parts == ["vm"]:
        if not running:
            raise ValueError("The requested operation is not supported before starting the microVM.")
        state["phase"] = {"Paused": "Paused", "Resumed": "Running"}[body["state"]]
        if state["phase"] == "Running":
            end_streams()
    elif parts == ["snapshot", "create"]:
        if state["phase"] != "Paused":
            raise ValueError(
                "Create snapshot error: Cannot save the microVM state: Operation not allowed: save/restore "
                "unavailable while running"
            )
        state["saved"] = True
        if FAULT == "create":
            raise ValueError("Create snapshot error: Cannot write memory: No space left on device (os error 28)")
        with open(body["mem_file_path"], "wb") as memory:
            memory.write(MEMORY)
            memory.truncate(1 << 20)
        with open(body["snapshot_path"], "w") as saved:
            json.dump({"drives": state["drives"], "vsock": VSOCK, "box": state["box"], "saved": True}, saved)
    elif parts == ["snapshot", "load"]:
        load(body, running)
    elif method == "PATCH" and parts[0] == "drives" and running:
        os.close(os.open(body["path_on_host"], os.O_RDWR))
    elif running:
        raise ValueError(AFTER_START)
    elif parts == ["machine-config"]:
        if not 1 <= body["vcpu_count"] <= 32:
            raise ValueError("Machine config error: The number of vCPUs must be greater than 0, less than 32.")
    elif parts == ["boot-source"]:
        for key in ("kernel_image_path", "initrd_path"):
            open(body[key], "rb").close()
        if not body["boot_args"].endswith(" -- machine"):
            raise ValueError("Boot source error: no first process")
        state["kernel"] = body
    elif parts[0] == "drives" and body["drive_id"] == parts[1]:
        os.close(os.open(body["path_on_host"], os.O_RDONLY if body["is_read_only"] else os.O_RDWR))
        state["drives"][parts[1]] = body["is_read_only"]
    elif parts == ["vsock"]:
        state["vsock"] = listen(body["uds_path"])
    elif parts == ["entropy"]:
        pass
    elif parts == ["actions"] and body["action_type"] == "InstanceStart":
        if FAULT == "start":
            raise ValueError("Cannot build the microVM: no memory")
        if list(state["drives"].values()) != [True, False] or not state["kernel"]:
            raise ValueError("Cannot build the microVM: not whole")
        state["phase"] = "Running"
        if FAULT == "boot":
            print("[    0.1] Kernel panic - not syncing: nothing to run", flush=True)
            os._exit(1)
        threading.Thread(target=accept, args=(state["vsock"], guest), daemon=True).start()
    else:
        raise ValueError(f"Invalid request method and/or path: {method} {path}.")


def answer(connection):
    """Answers the requests of one connection to the API."""
    stream = connection.makefile("rwb")
    while line := stream.readline():
        method, path, _ = line.decode().split(" ")
        length = 0
        while (header := stream.readline().strip()) != b"":
            if header.lower().startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        body = stream.read(length)
        with open("requests", "a") as requests:
            print(method, path, file=requests)
        try:
            if (method, path) == ("GET", "/"):
                info = json.dumps({"id": "fake", "state": state["phase"], "vmm_version": "1.16.1"}).encode()
                head = f"HTTP/1.1 200 \r\nContent-Type: application/json\r\nContent-Length: {len(info)}\r\n\r\n"
                stream.write(head.encode() + info)
                stream.flush()
                continue
            with lock:
                change(method, path, json.loads(body or b"{}"))
            stream.write(b"HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n")
        except Exception as reason:
            fault = json.dumps({"fault_message": str(reason)}).encode()
            head = f"HTTP/1.1 400 \r\nContent-Type: application/json\r\nContent-Length: {len(fault)}\r\n\r\n"
            stream.write(head.encode() + fault)
        stream.flush()
        if state.get("fails"):
            os._exit(1)


def guest(connection):
    """Connects a port of the vsock."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            return
        line += byte
    port = int(line.split()[1])
    state["streams"].append(connection)
    if state["phase"] == "Paused" or state.get("deaf"):
        threading.Event().wait()
    if port == BOOT_PORT and not state["box"]:
        connection.sendall(b"OK 1073741824\n")
        line = connection.makefile("rb").readline()
        if not line.endswith(b"\n"):
            return
        machine = json.loads(line)
        assert len(machine["entropy"]) == 128 and machine["pids"] > 0 and machine["disk_bytes"] > 0
        if FAULT == "settle":
            connection.sendall(b'{"failed":{"step":"mount an overlay","errno":19}}\n')
        else:
            state["box"] = True
            connection.sendall(b'"ready"\n')
    elif port == AGENT_PORT and state["box"]:
        connection.sendall(b"OK 1073741825\n")
        agent = socket.socket(socket.AF_UNIX)
        agent.connect(AGENT)
        threading.Thread(target=copy, args=(agent, connection), daemon=True).start()
        copy(connection, agent)
    connection.close()


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def accept(listener, serve):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


api = socket.socket(socket.AF_UNIX)
api.bind(api_path)
api.listen(16)
accept(api, answer)
