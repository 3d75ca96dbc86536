"""Asks a starting process whether it is ready, until it is."""

import asyncio
import http.client
import socket
import ssl
import urllib.parse
from pathlib import Path

from llmd_oke.rehearsal.processes import FileReady, HttpReady, Readiness, TcpReady

_ATTEMPT_TIMEOUT_S = 2.0
_PAUSE_S = 0.05


async def wait_until_ready(readiness: Readiness) -> None:
    """Return when the process is ready; the caller sets the limit. It is asked again every 50 ms."""
    while not await asyncio.to_thread(is_ready, readiness):  # noqa: ASYNC110 - another process can't set an event
        await asyncio.sleep(_PAUSE_S)


def is_ready(readiness: Readiness) -> bool:
    """Ask once."""
    match readiness:
        case HttpReady():
            return _answers(readiness)
        case TcpReady():
            return _accepts(readiness)
        case FileReady():
            return Path(readiness.path).exists()


def _accepts(readiness: TcpReady) -> bool:
    try:
        socket.create_connection((readiness.host, readiness.port), timeout=_ATTEMPT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _answers(readiness: HttpReady) -> bool:
    connection = _connection(readiness)
    try:
        connection.request("GET", urllib.parse.urlsplit(readiness.url).path or "/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _connection(readiness: HttpReady) -> http.client.HTTPConnection:
    address = urllib.parse.urlsplit(readiness.url)
    host = address.hostname or "127.0.0.1"
    if address.scheme == "http":
        return http.client.HTTPConnection(host, address.port, timeout=_ATTEMPT_TIMEOUT_S)
    return http.client.HTTPSConnection(host, address.port, timeout=_ATTEMPT_TIMEOUT_S, context=_tls(readiness))


def _tls(readiness: HttpReady) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=readiness.ca_file)
    if readiness.ca_file is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if readiness.certificate_file is not None:
        context.load_cert_chain(readiness.certificate_file, readiness.key_file)
    return context
