"""A site with all that pages ask for: files, events, a WebSocket, uploads and downloads."""

import base64
import contextlib
import hashlib
import http.server
import pathlib
import sys
import time

PAGE = """<!DOCTYPE html>
<title>A page</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/style.css">
<p id="word">no</p>
<script src="/script.js"></script>
"""
STYLE = "p { color: rgb(1, 2, 3) }"
SCRIPT = """
const events = new Promise((resolve, reject) => {
  const source = new EventSource("/events"), came = [];
  source.onmessage = ({data}) => {
    came.push(data);
    if (came.length == 3) { source.close(); resolve(came); }
  };
  source.onerror = () => reject(new Error("the events broke"));
});
const echoed = new Promise((resolve, reject) => {
  const socket = new WebSocket(location.origin.replace("http", "ws") + "/socket");
  socket.onopen = () => socket.send("over a socket");
  socket.onmessage = ({data}) => socket.close(1000, data);
  socket.onclose = ({code, reason}) => resolve([code, reason]);
  socket.onerror = () => reject(new Error("the socket broke"));
});
const uploaded = (async () => {
  const sent = Uint8Array.from({length: 3000000}, (_, at) => at * 7 + (at >> 9));
  const answer = await fetch("/echo", {method: "POST", body: sent});
  const came = new Uint8Array(await answer.arrayBuffer());
  return came.length == sent.length && came.every((byte, at) => byte == sent[at]);
})();
const color = getComputedStyle(document.querySelector("#word")).color;
const seen = Promise.all([color, events, echoed, uploaded]);
"""
FILES = {
    "/": ("text/html", PAGE),
    "/style.css": ("text/css", STYLE),
    "/script.js": ("text/javascript", SCRIPT),
}
# Where it is not the disk of the box, a large file would be memory of it.
STORED = pathlib.Path("/workspace/stored")
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def head(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def pieces(self):
        left = int(self.headers["Content-Length"])
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            if not piece:
                raise OSError("the body was cut off")
            left -= len(piece)
            yield piece

    def do_GET(self):
        if self.path == "/events":
            self.head(200, Content_Type="text/event-stream")
            for number in range(3):
                self.wfile.write(f"data: event {number}\n\n".encode())
                self.wfile.flush()
                time.sleep(0.05)
            self.close_connection = True
            with contextlib.suppress(ConnectionError):
                # The page hangs up.
                self.rfile.read(1)
        elif self.path == "/socket":
            self.socket()
        elif self.path == "/stored":
            self.head(200, Content_Type="application/octet-stream", Content_Length=STORED.stat().st_size)
            with STORED.open("rb") as file:
                self.connection.sendfile(file)
        elif self.path in FILES:
            kind, content = FILES[self.path]
            self.head(200, Content_Type=kind, Content_Length=len(content))
            self.wfile.write(content.encode())
        else:
            self.head(404, Content_Length=0)

    def do_POST(self):
        body = b"".join(self.pieces())
        self.head(200, Content_Type="application/octet-stream", Content_Length=len(body))
        self.wfile.write(body)

    def do_PUT(self):
        digest = hashlib.sha256()
        with STORED.open("wb") as file:
            for piece in self.pieces():
                digest.update(piece)
                file.write(piece)
        text = digest.hexdigest().encode()
        self.head(200, Content_Length=len(text))
        self.wfile.write(text)

    def socket(self):
        key = self.headers["Sec-WebSocket-Key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest()).decode()
        self.head(101, Upgrade="websocket", Connection="Upgrade", Sec_WebSocket_Accept=accept)
        self.close_connection = True
        opcode = 0
        while opcode != 8:
            first, second = self.rfile.read(2)
            opcode = first & 15
            mask = self.rfile.read(4)
            content = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(second & 127)))
            self.wfile.write(bytes([first, len(content)]) + content)

    def log_message(self, text, *arguments):
        """Prints the requests that arrived, for the test."""
        print(self.command, self.path, flush=True)


http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
