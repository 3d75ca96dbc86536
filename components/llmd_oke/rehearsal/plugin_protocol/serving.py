"""A plug-in's gRPC server, and how the engine is told of errors."""

import functools
import logging
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import grpc

from llmd_oke.rehearsal.plugin_protocol.errors import InitFailed, Refusal
from llmd_oke.rehearsal.plugin_protocol.messages import Status, add_servicer, encode, provider

WORKERS: Final = 256
"""As many waits can be under way at once; each holds a thread."""
MESSAGE_LIMIT_BYTES: Final = 400 * 1024 * 1024

Message: TypeAlias = Any
"""A generated message, or a gRPC context: neither has types."""

_log = logging.getLogger(__name__)


class Stoppable(Protocol):
    """A running plug-in."""

    def stop(self) -> None:
        """Stops to serve."""
        ...


@dataclass(frozen=True)
class Server:
    """A running plug-in on a port of 127.0.0.1. `cancel` ends the waits that are under way."""

    port: int
    _grpc: Any
    _cancel: Callable[[], None]

    def stop(self) -> None:
        """Stops to serve, and ends the waits that are under way."""
        self._cancel()
        self._grpc.stop(grace=0).wait()


def serve(servicer: object, port: int, cancel: Callable[[], None]) -> Server:
    """Serves on a port of 127.0.0.1; 0 for a free one."""
    options = [
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(ThreadPoolExecutor(WORKERS, thread_name_prefix="call"), options=options)
    add_servicer(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return Server(bound, server, cancel)


def serve_until_told(start: Callable[[], Stoppable]) -> None:
    """Starts a plug-in that logs every call to standard error, and stops it at SIGINT or SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = start()
    signal.sigwait(ends)
    server.stop()


class _Failure(NamedTuple):
    """What gRPC takes as the end of a failed call."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def _failure(error: Exception) -> _Failure:
    status = Status(code=grpc.StatusCode.UNKNOWN.value[0], message=str(error))
    if isinstance(error, InitFailed):
        detail = provider.ErrorResourceInitFailed(
            id=error.id,
            properties=encode(error.properties),
            reasons=error.reasons,
            inputs=None if error.inputs is None else encode(error.inputs),
        )
        status.details.add().Pack(detail)
    return _Failure(grpc.StatusCode.UNKNOWN, str(error), (("grpc-status-details-bin", status.SerializeToString()),))


def answering(method: Callable[..., Any]) -> Callable[..., Any]:
    """Logs a call, and tells the engine of an error in the form that it expects."""

    @functools.wraps(method)
    def answer(self: Any, request: Message, context: Message) -> Message:
        began, outcome = time.monotonic(), "ok"
        try:
            return method(self, request, context)
        except Exception as error:
            outcome = f"failed: {error}"
            if not isinstance(error, Refusal | InitFailed):
                _log.exception("%s", method.__name__)
            context.abort_with_status(_failure(error))
        finally:
            name = getattr(request, "urn", "") or getattr(request, "tok", "")
            _log.info("%s %s %.3f s %s", method.__name__, name, time.monotonic() - began, outcome)

    return answer
