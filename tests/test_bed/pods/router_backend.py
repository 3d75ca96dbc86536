"""A model server that says what it was sent; with `stream`, in ten parts of a twentieth of a second each.

`/seen` has all that it was sent. It listens on PORT, 8000 if there is none.
"""

import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SEEN: list[dict[str, object]] = []
METRICS = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/seen":
            self._answer(json.dumps(SEEN).encode(), "application/json")
            return
        if self.path != "/metrics":
            self._record(b"")
        self._answer(METRICS.encode(), "text/plain")

    def do_POST(self) -> None:
        body = self._body()
        self._record(body)
        if json.loads(body).get("stream"):
            self._stream()
            return
        seen = {"server": os.environ["POD_NAME"], "headers": {k.lower(): v for k, v in self.headers.items()}}
        self._answer(json.dumps(seen).encode(), "application/json")

    def _record(self, body: bytes) -> None:
        text = "\n".join(f"{name.lower()}: {value}" for name, value in self.headers.items())
        SEEN.append({"method": self.command, "path": self.path, "headers": text, "body": body.decode("latin-1")})

    def _body(self) -> bytes:
        """Envoy passes bodies on in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, body: bytes, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in [b'data: {"choices": []}\n\n'] * 10 + [b"data: [DONE]\n\n"]:
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.flush()
            time.sleep(0.05)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""


ThreadingHTTPServer(("0.0.0.0", int(os.environ.get("PORT", "8000"))), Handler).serve_forever()  # noqa: S104 - in a pod
