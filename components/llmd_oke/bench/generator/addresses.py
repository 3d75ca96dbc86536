"""From a base URL to what a socket needs."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from llmd_oke.bench.deployment.targets import Target
from llmd_oke.errors import KitError


@dataclass(frozen=True)
class Address:
    """Host, port and path of a target; `tls` is what to encrypt with, None for plain HTTP."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None

    @property
    def authority(self) -> str:
        """The `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def address_of(target: Target) -> Address:
    """Read a target's URL.

    Raises:
        KitError: it isn't a URL of HTTP.
    """
    accepted = "Give a URL such as http://10.0.0.7:8000."
    try:
        parts = urlsplit(target.base_url)
        port = parts.port
    except ValueError as error:
        raise KitError(f"{target.base_url!r} is no URL: {error}", accepted) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise KitError(f"{target.base_url!r} is no URL of HTTP", accepted)
    tls = _tls(target) if parts.scheme == "https" else None
    return Address(parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"), tls)


def _tls(target: Target) -> ssl.SSLContext:
    if isinstance(target.verify, ssl.SSLContext):
        return target.verify
    context = ssl.create_default_context()
    if not target.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def resolve(address: Address) -> Sequence[str]:
    """The numeric addresses of the host, in the resolver's order. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
