"""HTTP clients as all of the bench opens them."""

import ssl
from collections.abc import Mapping

import httpx


def open_client(
    url: str,
    *,
    verify: ssl.SSLContext | bool,
    headers: Mapping[str, str],
    timeout: httpx.Timeout,
    connections: int | None = None,
) -> httpx.AsyncClient:
    """A client for what lies under `url`, with at most so many `connections` (None: no limit).

    Proxies of the environment are not used, since they would be measured too. Loading certificates takes tens of
    milliseconds, so that an address without TLS goes without them.
    """
    return httpx.AsyncClient(
        base_url=url,
        headers={"accept-encoding": "identity", **headers},
        verify=verify if httpx.URL(url).scheme == "https" else False,
        timeout=timeout,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        trust_env=False,
    )
