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
    """A pod that has an address.

    Attributes:
        name: of the pod.
        address: where it listens.
        restarts: of its containers since it is there.
        started: whether the startup probes of all its containers have passed.
        labels: of the pod.
    """

    name: str
    address: str
    restarts: int = field(default=0, compare=False)
    started: bool = field(default=True, compare=False)
    labels: Mapping[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
