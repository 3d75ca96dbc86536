"""The downward API: fields of the pod and resources of its containers, as text."""

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal

from lightkube.models.core_v1 import Container, ResourceFieldSelector
from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.pods.facts import MissingSourceError, PodFacts, spec_of
from llmd_oke.rehearsal.watches import identity, metadata, texts

_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTP", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTP", start=1)},
}
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


def field_value(pod: Pod, facts: PodFacts, path: str) -> str:
    """Give the value of a fieldRef; MissingSourceError for a path that Kubernetes doesn't offer."""
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return _map(pod, keyed[1]).get(keyed[2], "")
    if path in {"metadata.labels", "metadata.annotations"}:
        pairs = sorted(_map(pod, path.removeprefix("metadata.")).items())
        return "\n".join(f'{key}="{_escaped(value)}"' for key, value in pairs)
    value = _plain_fields(pod, facts).get(path)
    if value is None:
        raise MissingSourceError(f"unsupported fieldPath: {path}")
    return value


def resource_value(pod: Pod, container: Container, facts: PodFacts, selector: ResourceFieldSelector) -> str:
    """Give the value of a resourceFieldRef, rounded up to whole divisors; a limit not set is the node's allocatable."""
    named = (each for each in _containers(pod) if each.name == selector.containerName)
    source = next(named, container) if selector.containerName else container
    kind, _, resource = selector.resource.partition(".")
    resources = source.resources
    limits = texts(resources, "limits")
    requests = texts(resources, "requests")
    if kind == "limits":
        amount = limits.get(resource) or facts.allocatable.get(resource, "0")
    else:
        amount = requests.get(resource) or limits.get(resource) or "0"
    divisor = quantity(selector.divisor or "0") or Decimal(1)
    return str((quantity(amount) / divisor).to_integral_value(ROUND_CEILING))


def quantity(text: str) -> Decimal:
    """Read a Kubernetes quantity such as `1500m` or `8Gi` in base units."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match[2] not in _SUFFIXES:
        raise MissingSourceError(f"not a quantity: {text}")
    return Decimal(match[1]) * _SUFFIXES[match[2]]


def _plain_fields(pod: Pod, facts: PodFacts) -> dict[str, str]:
    who, spec = identity(pod), spec_of(pod)
    return {
        "metadata.name": who.name,
        "metadata.namespace": who.namespace,
        "metadata.uid": who.uid,
        "spec.nodeName": facts.node_name,
        "spec.serviceAccountName": spec.serviceAccountName or "default",
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }


def _map(pod: Pod, kind: str) -> Mapping[str, str]:
    meta = metadata(pod)
    return texts(meta, kind)


def _containers(pod: Pod) -> list[Container]:
    spec = spec_of(pod)
    return [*(spec.initContainers or []), *spec.containers]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
