"""Addresses of Services and pods of a cluster, with what a request to them needs."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HttpEndpoint:
    """A base URL, and what a request to it needs."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True


@dataclass(frozen=True)
class PodAddress:
    """A pod that runs, by name and address; `restarts` of its containers since it is there."""

    name: str
    address: str
    restarts: int = field(default=0, compare=False)
