"""Reading HTTP/1.1 answers at little cost (RFC 9112).

An answer that streams tokens has one short chunk in each packet, as a rule; that case takes a few operations, all
others go through a buffer.
"""

from email.utils import parsedate_to_datetime
from time import time

MAX_HEAD_BYTES = 65536


class BadAnswer(Exception):
    """What came is not HTTP/1.1."""


class AnswerReader:
    """Reads one answer; feed it the bytes as they come, until it is `complete`."""

    __slots__ = ("_chunked", "_in_chunk", "_left", "_rest", "_trailer", "complete", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        self.keep_alive = True
        self._rest = b""
        self._chunked = False
        self._in_chunk = False
        self._trailer = False
        self._left: int | None = None
        """Bytes of the body, or of the chunk, that are still to come; None: until the connection ends."""

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in `data`.

        Raises `BadAnswer`.
        """
        if self._chunked and not self._rest and not self._in_chunk and not self._trailer:
            end = data.find(b"\r\n", 0, 10)
            if end > 0 and data[:end].isalnum():
                size = _size(data[:end])
                if size and len(data) == end + size + 4:
                    return data[end + 2 : -2]
        self._rest += data
        if not self.status and not self._read_head():
            return b""
        return self._read_chunks() if self._chunked else self._read_plain()

    def end(self) -> bool:
        """The connection has ended: whether that is the end of the answer too."""
        self.complete = self.complete or (self.status > 0 and not self._chunked and self._left is None)
        self.keep_alive = False
        return self.complete

    @property
    def retry_after_s(self) -> float | None:
        """What the server asks for in `Retry-After`, as seconds from now, if that can be read."""
        text = self.headers.get(b"retry-after", b"").decode("latin-1").strip()
        if text.isdigit():
            return float(text)
        try:
            return max(parsedate_to_datetime(text).timestamp() - time(), 0.0)
        except (ValueError, TypeError):
            return None

    def _read_head(self) -> bool:
        """Interim answers (1xx) are skipped."""
        while not self.status:
            head, mark, rest = self._rest.partition(b"\r\n\r\n")
            if not mark:
                if len(self._rest) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(self._rest[:7]):
                    raise BadAnswer(f"not HTTP/1.1: {self._rest[:60]!r}")
                return False
            self._rest = rest
            self._note_head(head)
        return True

    def _note_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, after = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not after[:3].isdigit():
            raise BadAnswer(f"not HTTP/1.1: {first[:60]!r}")
        status = int(after[:3])
        if status < 200:
            return
        self.status = status
        pairs = (line.partition(b":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._note_framing(version)

    def _note_framing(self, version: bytes) -> None:
        connection = self.headers.get(b"connection", b"").lower()
        self.keep_alive = connection != b"close" and (version != b"HTTP/1.0" or connection == b"keep-alive")
        length = self.headers.get(b"content-length")
        self._chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
        if self._chunked:
            return
        if length is not None and not length.isdigit():
            raise BadAnswer(f"content-length is {length[:60]!r}")
        self._left = 0 if self.status in {204, 304} else None if length is None else int(length)

    def _read_plain(self) -> bytes:
        body, self._rest = (self._rest, b"") if self._left is None else (self._rest[: self._left], b"")
        if self._left is not None:
            self._left -= len(body)
            self.complete = not self._left
        return body

    def _read_chunks(self) -> bytes:
        found: list[bytes] = []
        while self._read_trailer() if self._trailer else self._in_chunk or self._begin_chunk():
            if not self._in_chunk:
                continue
            part = self._rest[: self._left]
            found.append(part)
            self._rest = self._rest[len(part) :]
            self._left = (self._left or 0) - len(part)
            if self._left or not self._end_chunk():
                break
        return b"".join(found)

    def _begin_chunk(self) -> bool:
        line, mark, rest = self._rest.partition(b"\r\n")
        if not mark:
            if len(line) > MAX_HEAD_BYTES:
                raise BadAnswer("a chunk without size")
            return False
        self._left, self._rest = _size(line.partition(b";")[0].strip()), rest
        self._trailer, self._in_chunk = not self._left, bool(self._left)
        return True

    def _end_chunk(self) -> bool:
        """Steps over the line end after a chunk, if it is there already."""
        if len(self._rest) < 2:
            return False
        if not self._rest.startswith(b"\r\n"):
            raise BadAnswer("a chunk longer than its size")
        self._rest, self._in_chunk = self._rest[2:], False
        return True

    def _read_trailer(self) -> bool:
        line, mark, rest = self._rest.partition(b"\r\n")
        if not mark:
            return False
        self._rest = rest
        self.complete = not line
        return not self.complete


def _size(text: bytes) -> int:
    try:
        return int(text, 16)
    except ValueError as error:
        raise BadAnswer(f"the size of a chunk is {text[:60]!r}") from error
