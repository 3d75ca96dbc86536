"""The question of `grpc.health.v1.Health/Check`, its two messages written by hand.

HealthCheckRequest is `string service = 1`, HealthCheckResponse `enum status = 1` with SERVING = 1
(https://github.com/grpc/grpc/blob/master/doc/health-checking.md).
"""

from collections.abc import Awaitable, Callable
from typing import cast

_METHOD = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
_MOST_BYTES = 127
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


def request(service: str) -> bytes:
    """Encode a HealthCheckRequest; ValueError for a service name longer than one length byte can say."""
    name = service.encode()
    if len(name) > _MOST_BYTES:
        raise ValueError(f"service name of {len(name)} bytes: at most {_MOST_BYTES} are supported")
    return b"\x0a" + bytes([len(name)]) + name if name else b""


async def serving(target: str, service: str, timeout_s: float) -> bool:
    """Say whether the service at `host:port` answers SERVING."""
    from grpc import RpcError, aio  # noqa: PLC0415  # slow to import, and many pods need no gRPC

    async with aio.insecure_channel(target, options=_OPTIONS) as channel:
        check = cast("Callable[..., Awaitable[bytes]]", channel.unary_unary(_METHOD))
        try:
            answer = await check(request(service), timeout=timeout_s)
        except RpcError:
            return False
    return answer.startswith(_SERVING)
