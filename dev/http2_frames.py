"""Frames and header fields of HTTP/2 as bytes, for attacks that HTTP libraries refuse to send."""

DATA, HEADERS, RESET, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
"""Types of frames."""

END_STREAM, END_HEADERS = 1, 4
"""Flags of frames."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def header_field(name: str, value: str) -> bytes:
    """Return a literal header field without indexing (RFC 7541, section 6.2.2)."""
    return b"\x00" + b"".join(prefixed_integer(len(text)) + text for text in (name.encode(), value.encode()))


def prefixed_integer(number: int) -> bytes:
    """Return an integer with a prefix of seven bits (RFC 7541, section 5.1)."""
    if number < 127:
        return bytes((number,))
    rest, data = number - 127, bytearray((127,))
    while rest >= 128:
        data.append(rest % 128 + 128)
        rest //= 128
    return bytes((*data, rest))
