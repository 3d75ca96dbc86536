"""Addresses of Services and pods of a cluster, with the HTTP headers and TLS settings that requests to them need."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HttpEndpoint:
    """Base URL of an HTTP server, with the headers of each request and the verification of its TLS certificate."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    verify: ssl.SSLContext | bool = True


@dataclass(frozen=True)
class PodAddress:
    """Name, IP address and state of a pod that has an IP address.

    Attributes:
        name: name of the pod.
        address: IP address of the pod.
        restarts: sum of the restart counts of the pod's containers, init containers included.
        started: whether the startup probes of all containers have passed.
        labels: labels of the pod.
    """

    name: str
    address: str
    restarts: int = field(default=0, compare=False)
    started: bool = field(default=True, compare=False)
    labels: Mapping[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
