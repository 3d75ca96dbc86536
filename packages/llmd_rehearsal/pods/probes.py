"""Probes of containers: schedule, requests, and verdicts."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import cast

from grpc import RpcError, aio
from lightkube.models.core_v1 import Container as ContainerModel
from lightkube.models.core_v1 import Probe

from llmd_rehearsal.pods.containers import Container
from llmd_rehearsal.running_time import within

SETTLED_S = 1.0
SHORTEST_S = 0.2  # more frequent probes would overload two cores
SETTLED_PER_S = 40.0
"""Limit of probes per second over all containers whose last probe succeeded: a thousand per second used half a core."""

LONGEST_SETTLED_S = 10.0
"""Longest period in seconds of a succeeding probe, on a machine with many probes; Kubernetes' default period."""

ANSWERS_PER_S = 100.0
"""Rate of answers per second that may be expected while programs start, over all probes: with a thousand probes, each
has 10 s for its answer.
"""

MIN_TIMEOUT_S = 5.0
"""Shortest timeout of a probe in seconds. On a busy machine a program may wait longer than the second that most probes
allow: an endpoint picker was killed under a benchmark. A refused connection still fails immediately.
"""

_AGENT = "kube-probe/rehearsal"
_METHOD = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
_MAX_BYTES = 127
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


@dataclass(frozen=True)
class Schedule:
    """Delays, periods and timeout of a container's probe in wall seconds, after scaling."""

    initial_delay_s: float
    period_s: float
    settled_period_s: float
    """Period in wall seconds while the probe succeeds; a shorter one would only add load."""
    doubtful_period_s: float
    """Period in wall seconds after a failure that doesn't change the verdict yet: the probe's own period, so that load
    alone changes no verdict.
    """
    timeout_s: float

    def timeout_of(self, probes: int) -> float:
        """Return the timeout in seconds of a probe, given the number of probes on this machine."""
        return max(self.timeout_s, MIN_TIMEOUT_S, probes / ANSWERS_PER_S)

    def period_of(self, tally: "Tally", probes: int = 0) -> float:
        """Return the seconds until the next probe, given the number of probes on this machine."""
        if tally.settled:
            longest_s = max(self.doubtful_period_s, LONGEST_SETTLED_S)
            return max(self.settled_period_s, min(longest_s, probes / SETTLED_PER_S))
        return self.doubtful_period_s if tally.doubtful else self.period_s


def schedule(probe: Probe, time_scale: float) -> Schedule:
    """Return a probe's schedule with delay and period multiplied by `time_scale` (1.0 is real time); the period is at
    least 0.2 s.

    The timeout, and the period after a first failure, aren't scaled, because a slow machine lengthens them anyway.
    """
    period_s = max((probe.periodSeconds or 10) * time_scale, SHORTEST_S)
    return Schedule(
        initial_delay_s=(probe.initialDelaySeconds or 0) * time_scale,
        period_s=period_s,
        settled_period_s=max(period_s, SETTLED_S),
        doubtful_period_s=float(probe.periodSeconds or 10),
        timeout_s=float(probe.timeoutSeconds or 1),
    )


@dataclass
class ProbeCount:
    """Number of probes of running containers, over all pods of the node agent."""

    running: int = 0

    @contextmanager
    def counted(self, probes: int) -> Generator[None]:
        """Count `probes` more probes as running while the `with` block runs."""
        self.running += probes
        try:
            yield
        finally:
            self.running -= probes


class Tally:
    """Count of a probe's equal results in a row, and the verdict (success or failure) by the probe's thresholds."""

    def __init__(self, probe: Probe, *, verdict: bool | None = None) -> None:
        self._needed = {True: probe.successThreshold or 1, False: probe.failureThreshold or 3}
        self._verdict = verdict
        self._last: bool | None = None
        self._run = 0

    @property
    def fresh(self) -> bool:
        """Tell whether the probe has had no result yet."""
        return self._last is None

    @property
    def doubtful(self) -> bool:
        """Tell whether the probe's verdict is success and its last result was a failure."""
        return bool(self._verdict) and self._last is False

    @property
    def settled(self) -> bool:
        """Tell whether the probe's verdict is success and its last result wasn't a failure."""
        return bool(self._verdict) and self._last is not False

    def record(self, *, passed: bool) -> bool | None:
        """Record a probe's result; return the new verdict if this result changes it, else None."""
        self._run = self._run + 1 if passed is self._last else 1
        self._last = passed
        if passed is self._verdict or self._run < self._needed[passed]:
            return None
        self._verdict = passed
        return passed


async def run_probe(probe: Probe, model: ContainerModel, container: Container, address: str, timeout_s: float) -> bool:
    """Tell whether the container passes the probe within `timeout_s` seconds; a refused or lost connection is a
    failure.

    Time in which this process was suspended, or in which the container's processes waited for a processor, doesn't
    count.
    """
    try:
        answer = _answer(probe, model, container, address, timeout_s)
        return await within(answer, timeout_s, container.processes)
    except (OSError, TimeoutError, EOFError, ValueError):
        return False


def port_number(port: int | str, model: ContainerModel) -> int:
    """Return the number of a probe's port, given as a number or as the name of one of the container's ports.

    Raises:
        ValueError: the port is neither a number nor such a name.
    """
    by_name = {
        container_port.name: container_port.containerPort for container_port in model.ports or [] if container_port.name
    }
    return by_name[port] if isinstance(port, str) and port in by_name else int(port)


async def _answer(probe: Probe, model: ContainerModel, container: Container, address: str, timeout_s: float) -> bool:
    if probe.httpGet:
        action, port = probe.httpGet, port_number(probe.httpGet.port, model)
        host, path = action.host or address, action.path or "/"
        headers = {"Host": f"{host}:{port}", "User-Agent": _AGENT, "Accept": "*/*", "Connection": "close"}
        headers |= {header.name: header.value for header in action.httpHeaders or []}
        line = f"GET {path if path.startswith('/') else f'/{path}'} HTTP/1.1"
        text = "\r\n".join([line, *(f"{name}: {value}" for name, value in headers.items()), "", ""])
        return 200 <= await http_status(host, port, text.encode(), tls=action.scheme == "HTTPS") < 400
    if probe.tcpSocket:
        host, port = probe.tcpSocket.host or address, port_number(probe.tcpSocket.port, model)
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        return True
    if probe.grpc:
        return await grpc_serving(f"{address}:{probe.grpc.port}", probe.grpc.service or "")
    if probe.exec:
        code, _ = await container.execute(probe.exec.command or [], timeout_s)
        return code == 0
    return True


async def http_status(host: str, port: int, request: bytes, *, tls: bool) -> int:
    """Send an HTTP request and return the status of the answer, 0 without a valid status line; like kubelet, don't
    verify certificates.
    """
    reader, writer = await asyncio.open_connection(host, port, ssl=_unverified() if tls else None)
    try:
        writer.write(request)
        status_line = (await reader.readline()).split()
        return int(status_line[1]) if len(status_line) > 1 and status_line[0].startswith(b"HTTP/") else 0
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def request(service: str) -> bytes:
    """Return the request of gRPC's health protocol for `service`, encoded: a HealthCheckRequest (`string service = 1`).

    Raises:
        ValueError: the service name is longer than 127 bytes.
    """
    name = service.encode()
    if len(name) > _MAX_BYTES:
        raise ValueError(f"service name of {len(name)} bytes: at most {_MAX_BYTES} are supported")
    return b"\x0a" + bytes([len(name)]) + name if name else b""


async def grpc_serving(target: str, service: str) -> bool:
    """Tell whether the service at `target` (`host:port`) answers SERVING to `grpc.health.v1.Health/Check`.

    The messages are encoded by hand: HealthCheckResponse is `enum status = 1` with SERVING = 1
    (https://github.com/grpc/grpc/blob/master/doc/health-checking.md).
    """
    async with aio.insecure_channel(target, options=_OPTIONS) as channel:
        check = cast("Callable[..., Awaitable[bytes]]", channel.unary_unary(_METHOD))
        try:
            answer = await check(request(service))
        except RpcError:
            return False
    return answer.startswith(_SERVING)
