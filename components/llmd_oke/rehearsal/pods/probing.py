"""Asks a container the question of a probe: HTTP, TCP, gRPC health or a command."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress

from lightkube.models.core_v1 import Container as ContainerModel
from lightkube.models.core_v1 import GRPCAction, HTTPGetAction, Probe

from llmd_oke.rehearsal.pods.containers import Container
from llmd_oke.rehearsal.pods.grpc_health import serving

_AGENT = "kube-probe/rehearsal"


async def ask(probe: Probe, model: ContainerModel, container: Container, address: str, timeout_s: float) -> bool:
    """Say whether the container passes within the time limit; a connection refused or lost is a failure."""
    try:
        return await asyncio.wait_for(_asked(probe, model, container, address, timeout_s), timeout_s)
    except (OSError, TimeoutError, EOFError, ValueError):
        return False


def port_number(port: int | str, model: ContainerModel) -> int:
    """Give the number of a probe's port, which may be one of the container's port names; ValueError if it isn't."""
    named = {each.name: each.containerPort for each in model.ports or [] if each.name}
    return named[port] if isinstance(port, str) and port in named else int(port)


async def _asked(probe: Probe, model: ContainerModel, container: Container, address: str, timeout_s: float) -> bool:
    if probe.httpGet:
        return await _http(probe.httpGet, address, port_number(probe.httpGet.port, model))
    if probe.tcpSocket:
        return await _tcp(probe.tcpSocket.host or address, port_number(probe.tcpSocket.port, model))
    if probe.grpc:
        return await _grpc(probe.grpc, address, timeout_s)
    if probe.exec:
        code, _ = await container.execute(probe.exec.command or [], timeout_s)
        return code == 0
    return True


async def _http(action: HTTPGetAction, address: str, port: int) -> bool:
    host = action.host or address
    status = await http_status(host, port, _request(action, host, port), tls=action.scheme == "HTTPS")
    return 200 <= status < 400


def _request(action: HTTPGetAction, host: str, port: int) -> bytes:
    path = action.path or "/"
    headers = {"Host": f"{host}:{port}", "User-Agent": _AGENT, "Accept": "*/*", "Connection": "close"}
    headers |= {header.name: header.value for header in action.httpHeaders or []}
    return _head(path if path.startswith("/") else f"/{path}", headers)


def _head(path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


async def http_status(host: str, port: int, request: bytes, *, tls: bool) -> int:
    """Send a request and give the status of the answer; certificates aren't checked, as a kubelet doesn't."""
    reader, writer = await asyncio.open_connection(host, port, ssl=_unchecked() if tls else None)
    try:
        writer.write(request)
        words = (await reader.readline()).split()
        return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") else 0
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _tcp(host: str, port: int) -> bool:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return True


async def _grpc(action: GRPCAction, address: str, timeout_s: float) -> bool:
    return await serving(f"{address}:{action.port}", action.service or "", timeout_s)


def _unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
