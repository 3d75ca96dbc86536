"""Archives, and a server on the loopback interface from which programs download them."""

import io
import tarfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from http_for_tests import HttpAnswer, HttpRequest, address_of, http_server


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

    def answer(request: HttpRequest) -> HttpAnswer:
        path = request.url.geturl()
        served.asked.append(path)
        return HttpAnswer(200 if path in served.files else 404, served.files.get(path, b""))

    with http_server(answer) as server:
        served = FileServer(address_of(server))
        yield served
