"""Archives, and a server on the loopback interface from which programs download them."""

import io
import tarfile
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def archive(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    """Return a compressed tar archive with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@dataclass
class FileServer:
    """Files by their paths, and the paths that were asked for, by HEAD or GET."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[str] = field(default_factory=list[str])


@contextmanager
def running_file_server() -> Generator[FileServer]:
    """Serve files meanwhile."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            content = served.files.get(self.path)
            served.asked.append(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(served.files.get(self.path, b""))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = FileServer(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield served
        server.shutdown()
