"""A program behind a preview: it answers as its path says, and tells what it was sent."""

import hashlib
import json
import socket
import sys
import threading


def line(stream):
    text = stream.readline()
    if not text:
        raise OSError("the client hung up")
    return text


def chunks(stream):
    while size := int(line(stream).split(b";")[0], 16):
        yield stream.read(size)
        line(stream)
    while line(stream).strip():
        pass


def body(stream, headers):
    """Returns the size of the body, which is read."""
    if "chunked" in headers.get("transfer-encoding", ""):
        return sum(len(piece) for piece in chunks(stream))
    left = total = int(headers.get("content-length", 0))
    while left:
        piece = stream.read(min(left, 1 << 20))
        if not piece:
            raise OSError("the body was cut off")
        left -= len(piece)
    return total


def answer(out, text, *more):
    content = text if isinstance(text, bytes) else text.encode()
    head = ["HTTP/1.1 200 OK", f"Content-Length: {len(content)}", *more, "", ""]
    out.sendall("\r\n".join(head).encode() + content)


def serve(out):
    stream = out.makefile("rb")
    lines = []
    while text := line(stream).strip():
        lines.append(text.decode("latin-1"))
    method, target, _ = lines[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines[1:])}
    path = target.split("?")[0]
    if path == "/count":
        answer(out, str(body(stream, headers)))
    elif path.startswith("/zeros/"):
        left = int(path.removeprefix("/zeros/"))
        out.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n".encode())
        block = bytes(1 << 20)
        while left and method != "HEAD":
            out.sendall(block[:left])
            left -= min(left, len(block))
    elif path == "/digest":
        digest = hashlib.sha256()
        for piece in chunks(stream):
            digest.update(piece)
        answer(out, digest.hexdigest())
    elif path == "/echo":
        out.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for piece in chunks(stream):
            out.sendall(piece)
    elif path == "/early":
        out.sendall(b"HTTP/1.1 413 Too Much\r\nContent-Length: 5\r\n\r\nearly")
        stream.read()
    elif path == "/events":
        out.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n")
        stream.read(1)
    elif path == "/switch":
        out.sendall(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\nX-Own: 1\r\n\r\nhello ")
        while piece := out.recv(65536):
            out.sendall(piece)
    elif path.startswith("/raw/"):
        out.sendall(bytes.fromhex(path.removeprefix("/raw/")))
    else:
        told = {"line": lines[0], "head": lines[1:], "body": body(stream, headers)}
        answer(out, json.dumps(told), "Set-Cookie: own=1; Domain=box.example", "Set-Cookie: tidebox-preview=x")


def run(out):
    try:
        serve(out)
        out.shutdown(socket.SHUT_WR)
        out.settimeout(5)
        while out.recv(65536):
            pass
    except (OSError, ValueError):
        pass
    finally:
        out.close()


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=1024)
while True:
    threading.Thread(target=run, args=(listener.accept()[0],), daemon=True).start()
