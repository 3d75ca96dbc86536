"""Where the parts of a deployment are, for whoever benchmarks it: from outside a cluster or from a pod in it."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Way:
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


class Directory(Protocol):
    """Finds Services and pods. All of it raises `KitError` where the cluster doesn't answer."""

    def service(self, namespace: str, name: str) -> Way:
        """The way to port 80 of a Service."""
        ...

    def pods(self, namespace: str, labels: Mapping[str, str]) -> Sequence[PodAddress]:
        """The pods with these labels that have an address, sorted by name."""
        ...

    def pod(self, namespace: str, pod: PodAddress, port: int) -> Way:
        """The way to a port of a pod."""
        ...
