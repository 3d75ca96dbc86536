"""What a pod needs to know of its surroundings, as plain values."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lightkube.models.core_v1 import Container, PodSpec
from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.watches import identity

DEFAULT_GRACE_S = 30


@dataclass(frozen=True)
class PodFacts:
    """Addresses and node of one pod; `allocatable` has the node's quantities by resource name."""

    pod_ip: str
    host_ip: str
    node_name: str
    allocatable: Mapping[str, str] = field(default_factory=dict[str, str])


class MissingSourceError(Exception):
    """A ConfigMap, Secret or key that a container needs isn't there (yet); the message is shown in the pod's status."""


class Sources(Protocol):
    """Where ConfigMaps and Secrets are read from."""

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Give its data and binary data, None if there is no such ConfigMap."""
        ...

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Give its decoded data, None if there is no such Secret."""
        ...


def decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    """Decode base64 values."""
    return {key: base64.b64decode(value) for key, value in data.items()}


def spec_of(pod: Pod) -> PodSpec:
    """Give the pod's spec (the models call it optional, the API server doesn't)."""
    return pod.spec or PodSpec(containers=[])


def is_sidecar(container: Container) -> bool:
    """Say whether an init container is a native sidecar."""
    return container.restartPolicy == "Always"


def host_name(pod: Pod) -> str:
    """Give the name that the pod calls itself."""
    return (spec_of(pod).hostname or identity(pod).name)[:63]
