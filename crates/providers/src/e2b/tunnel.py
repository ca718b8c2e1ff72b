import os, socket, struct, sys, threading
port = int(sys.argv[1])
usual = {"0.0.0.0": "127.0.0.1", "::": "::1"}
found = []
for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
    try:
        rows = open("/proc/net/" + name).read().split("\n")[1:]
    except OSError:
        continue
    for row in rows:
        row = row.split()
        if len(row) > 3 and row[3] == "0A" and int(row[1].split(":")[1], 16) == port:
            text = row[1].split(":")[0]
            raw = b"".join(struct.pack("=I", int(text[at:at + 8], 16)) for at in range(0, len(text), 8))
            host = socket.inet_ntop(family, raw)
            found.append((usual.get(host, host) not in ("127.0.0.1", "::1"), family, usual.get(host, host)))
link = None
for _, family, host in sorted(found):
    link = socket.socket(family, socket.SOCK_STREAM)
    try:
        link.connect((host, port))
        break
    except OSError:
        link = None
if link is None:
    os._exit(7)
link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def write(content):
    while content:
        content = content[os.write(1, content):]
def answer():
    try:
        while True:
            piece = link.recv(65536)
            if not piece:
                break
            write(struct.pack(">I", len(piece)) + piece)
    except OSError:
        os._exit(8)
    write(struct.pack(">I", 0))
write(struct.pack(">I", 0xffffffff))
thread = threading.Thread(target=answer, daemon=True)
thread.start()
taken = True
while True:
    piece = os.read(0, 65536)
    if not piece:
        break
    try:
        if taken:
            link.sendall(piece)
    except OSError:
        taken = False
try:
    link.shutdown(socket.SHUT_WR)
except OSError:
    pass
thread.join()
link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
link.close()
os._exit(0)
