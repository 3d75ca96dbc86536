"""Environment variables of a container: from ConfigMaps, Secrets, Services and the downward API, with `$(NAME)`
expanded.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Literal, Protocol

from lightkube.models.core_v1 import Container, EnvVarSource, ResourceFieldSelector
from lightkube.models.core_v1 import Service as ServiceModel
from lightkube.resources.core_v1 import Pod
from llmd_oke.operations.objects import metadata, texts

from llmd_rehearsal.watches import identity, spec_of

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")

_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTP", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTP", start=1)},
}

_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")
DEFAULT_GRACE_S = 30


@dataclass(frozen=True)
class PodFacts:
    """Addresses and node of one pod; `allocatable` has the node's allocatable quantities by resource name."""

    pod_ip: str
    host_ip: str
    node_name: str
    allocatable: Mapping[str, str] = field(default_factory=dict[str, str])


class MissingConfigError(Exception):
    """A ConfigMap, Secret or key that a container needs doesn't exist (yet); the message is shown in the pod's
    status.
    """


class Sources(Protocol):
    """Interface for reading the ConfigMaps and Secrets that pods refer to."""

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Return a ConfigMap's data and binary data; None if there is no such ConfigMap."""
        ...

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Return a Secret's decoded data; None if there is no such Secret."""
        ...


def host_name(pod: Pod) -> str:
    """Return the host name that programs in a pod see."""
    return (spec_of(pod).hostname or identity(pod).name)[:63]


def environment(
    pod: Pod, container: Container, facts: PodFacts, sources: Sources, links: Mapping[str, str]
) -> dict[str, str]:
    """Return all environment variables of a container, in the order in which Kubernetes lets them override each other.

    `links` are the variables of Services (see `service_links`), which all other variables override.

    Raises:
        MissingConfigError: a required ConfigMap, Secret or key doesn't exist; the message names it.
    """
    values = {"PATH": DEFAULT_PATH, "HOME": "/root", "HOSTNAME": host_name(pod), **links}
    for source in container.envFrom or []:
        reference = source.configMapRef or source.secretRef
        if reference is None:
            continue
        kind = "configmap" if source.configMapRef else "secret"
        data = source_data(sources, kind, identity(pod).namespace, reference.name, optional=reference.optional)
        values |= {f"{source.prefix or ''}{key}": value.decode() for key, value in data.items()}
    for variable in container.env or []:
        if variable.valueFrom is None:
            values[variable.name] = expand(variable.value or "", values)
            continue
        value = _value_from(pod, container, facts, sources, variable.valueFrom)
        if value is not None:
            values[variable.name] = value
    return values


def _value_from(pod: Pod, container: Container, facts: PodFacts, sources: Sources, source: EnvVarSource) -> str | None:
    if source.fieldRef:
        return field_value(pod, facts, source.fieldRef.fieldPath)
    if source.resourceFieldRef:
        return resource_value(pod, container, facts, source.resourceFieldRef)
    reference = source.configMapKeyRef or source.secretKeyRef
    if reference is None:
        raise MissingConfigError("unsupported valueFrom")
    namespace, kind = identity(pod).namespace, "configmap" if source.configMapKeyRef else "secret"
    data = source_data(sources, kind, namespace, reference.name, optional=reference.optional)
    if reference.key in data:
        return data[reference.key].decode()
    if reference.optional:
        return None
    raise MissingConfigError(f"couldn't find key {reference.key} in {kind} {namespace}/{reference.name or ''}")


def source_data(
    sources: Sources, kind: Literal["configmap", "secret"], namespace: str, name: str | None, *, optional: bool | None
) -> Mapping[str, bytes]:
    """Return the data of a ConfigMap or Secret; empty if the object doesn't exist and is optional.

    Raises:
        MissingConfigError: the object doesn't exist and isn't optional.
    """
    name = name or ""
    data = sources.config_map(namespace, name) if kind == "configmap" else sources.secret(namespace, name)
    if data is None and not optional:
        raise MissingConfigError(f'{kind} "{name}" not found')
    return data or {}


def service_links(services: Iterable[ServiceModel], namespace: str, *, all_of_namespace: bool) -> dict[str, str]:
    """Return the environment variables of the API server's Service and, with `all_of_namespace`, of all Services of the
    namespace.
    """
    values: dict[str, str] = {}
    for service in services:
        service_id = identity(service)
        is_api_server = (service_id.namespace, service_id.name) == ("default", "kubernetes")
        if is_api_server or (all_of_namespace and service_id.namespace == namespace):
            values |= _links_of(service, service_id.name)
    return values


def _links_of(service: ServiceModel, name: str) -> dict[str, str]:
    spec = service.spec
    address = (spec.clusterIP if spec else None) or "None"
    ports = (spec.ports if spec else None) or []
    if address == "None" or not ports:
        return {}
    prefix = name.upper().replace("-", "_")
    first = ports[0]
    values = {
        f"{prefix}_SERVICE_HOST": address,
        f"{prefix}_SERVICE_PORT": str(first.port),
        f"{prefix}_PORT": f"{(first.protocol or 'TCP').lower()}://{address}:{first.port}",
    }
    for port in ports:
        if port.name:
            values[f"{prefix}_SERVICE_PORT_{port.name.upper().replace('-', '_')}"] = str(port.port)
        protocol = port.protocol or "TCP"
        link = f"{prefix}_PORT_{port.port}_{protocol}"
        values |= {
            link: f"{protocol.lower()}://{address}:{port.port}",
            f"{link}_PROTO": protocol.lower(),
            f"{link}_PORT": str(port.port),
            f"{link}_ADDR": address,
        }
    return values


def field_value(pod: Pod, facts: PodFacts, path: str) -> str:
    """Return the value of a pod's field that a fieldRef of the downward API names by `path`.

    Raises:
        MissingConfigError: Kubernetes doesn't support the path.
    """
    keyed = _KEYED.fullmatch(path)
    if keyed:
        return texts(metadata(pod), keyed[1]).get(keyed[2], "")
    if path in {"metadata.labels", "metadata.annotations"}:
        pairs = sorted(texts(metadata(pod), path.removeprefix("metadata.")).items())
        escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
        return "\n".join(f'{key}="{value.translate(escapes)}"' for key, value in pairs)
    value = _plain_fields(pod, facts).get(path)
    if value is None:
        raise MissingConfigError(f"unsupported fieldPath: {path}")
    return value


def resource_value(pod: Pod, container: Container, facts: PodFacts, selector: ResourceFieldSelector) -> str:
    """Return the value of a resource that a resourceFieldRef of the downward API names, rounded up to whole divisors; a
    missing limit is the node's allocatable quantity.
    """
    spec = spec_of(pod)
    others = (
        other for other in [*(spec.initContainers or []), *spec.containers] if other.name == selector.containerName
    )
    source = next(others, container) if selector.containerName else container
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
    """Return a Kubernetes quantity such as `1500m` or `8Gi` as a number.

    Raises:
        MissingConfigError: the text isn't a quantity.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match[2] not in _SUFFIXES:
        raise MissingConfigError(f"not a quantity: {text}")
    return Decimal(match[1]) * _SUFFIXES[match[2]]


def _plain_fields(pod: Pod, facts: PodFacts) -> dict[str, str]:
    name_and_uid, spec = identity(pod), spec_of(pod)
    return {
        "metadata.name": name_and_uid.name,
        "metadata.namespace": name_and_uid.namespace,
        "metadata.uid": name_and_uid.uid,
        "spec.nodeName": facts.node_name,
        "spec.serviceAccountName": spec.serviceAccountName or "default",
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
    }


def expand(text: str, values: Mapping[str, str]) -> str:
    """Return the text with each `$(NAME)` replaced by the value of this name in `values`; unknown names are kept, and
    `$$` becomes `$`.
    """

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(replaced, text)


def resolve_argv(
    command: Sequence[str] | None,
    arguments: Sequence[str] | None,
    entrypoint: Sequence[str],
    image_arguments: Sequence[str],
    environment: Mapping[str, str],
) -> list[str]:
    """Return the command line: `command` replaces the image's entry point and arguments, `arguments` only the image's
    arguments. Variables are expanded.
    """
    argv = [*command, *(arguments or ())] if command else [*entrypoint, *(arguments or image_arguments)]
    return [expand(word, environment) for word in argv]


def decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    """Return a copy of a Secret's data in which the base64 values are decoded."""
    return {key: base64.b64decode(value) for key, value in data.items()}
