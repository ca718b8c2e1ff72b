"""Accepts connections and keeps them; what it is sent on one it sends on all. With an argument, each
begins with a request that switches the protocol."""

import selectors
import socket
import sys

listener = socket.create_server(("127.0.0.1", 3000), backlog=1024)
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
kept = []
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            connection = listener.accept()[0]
            if sys.argv[1:]:
                while b"\r\n\r\n" not in connection.recv(65536):
                    pass
                connection.sendall(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
            kept.append(connection)
            selector.register(connection, selectors.EVENT_READ)
            continue
        try:
            piece = key.fileobj.recv(65536)
        except OSError:
            piece = b""
        if piece:
            for connection in kept:
                connection.sendall(piece)
        else:
            selector.unregister(key.fileobj)
            key.fileobj.close()
            kept.remove(key.fileobj)
