"""A container's environment variables, in the order in which Kubernetes lets them override each other."""

from collections.abc import Iterable, Mapping

from lightkube.models.core_v1 import Container, EnvFromSource, EnvVarSource
from lightkube.models.core_v1 import Service as ServiceModel
from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.pods.downward import field_value, resource_value
from llmd_oke.rehearsal.pods.expansion import expand
from llmd_oke.rehearsal.pods.facts import MissingSourceError, PodFacts, Sources, host_name
from llmd_oke.rehearsal.watches import identity

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(
    pod: Pod, container: Container, facts: PodFacts, sources: Sources, links: Mapping[str, str]
) -> dict[str, str]:
    """Give all variables; MissingSourceError names the ConfigMap, Secret or key that isn't there.

    `links` are the variables of Services (see `service_links`), which everything else overrides.
    """
    values = {"PATH": DEFAULT_PATH, "HOME": "/root", "HOSTNAME": host_name(pod), **links}
    for source in container.envFrom or []:
        values |= _all_of(identity(pod).namespace, source, sources)
    for variable in container.env or []:
        if variable.valueFrom is None:
            values[variable.name] = expand(variable.value or "", values)
            continue
        found = _value_from(pod, container, facts, sources, variable.valueFrom)
        if found is not None:
            values[variable.name] = found
    return values


def service_links(services: Iterable[ServiceModel], namespace: str, *, all_of_namespace: bool) -> dict[str, str]:
    """Give the variables for the API server's Service and, if asked for, all Services of the namespace."""
    values: dict[str, str] = {}
    for service in services:
        who = identity(service)
        is_api_server = (who.namespace, who.name) == ("default", "kubernetes")
        if is_api_server or (all_of_namespace and who.namespace == namespace):
            values |= _links_of(service, who.name)
    return values


def _links_of(service: ServiceModel, name: str) -> dict[str, str]:
    spec = service.spec
    address = (spec.clusterIP if spec else None) or "None"
    ports = (spec.ports if spec else None) or []
    if address == "None" or not ports:
        return {}
    prefix = name.upper().replace("-", "_")
    first = ports[0]
    protocol = (first.protocol or "TCP").lower()
    values = {
        f"{prefix}_SERVICE_HOST": address,
        f"{prefix}_SERVICE_PORT": str(first.port),
        f"{prefix}_PORT": f"{protocol}://{address}:{first.port}",
    }
    for port in ports:
        if port.name:
            values[f"{prefix}_SERVICE_PORT_{port.name.upper().replace('-', '_')}"] = str(port.port)
        values |= _docker_link(prefix, address, port.port, port.protocol or "TCP")
    return values


def _docker_link(prefix: str, address: str, port: int, protocol: str) -> dict[str, str]:
    link = f"{prefix}_PORT_{port}_{protocol}"
    return {
        link: f"{protocol.lower()}://{address}:{port}",
        f"{link}_PROTO": protocol.lower(),
        f"{link}_PORT": str(port),
        f"{link}_ADDR": address,
    }


def _all_of(namespace: str, source: EnvFromSource, sources: Sources) -> dict[str, str]:
    reference = source.configMapRef or source.secretRef
    if reference is None:
        return {}
    name, kind = reference.name or "", "configmap" if source.configMapRef else "secret"
    data = sources.config_map(namespace, name) if source.configMapRef else sources.secret(namespace, name)
    if data is None and not reference.optional:
        raise MissingSourceError(f'{kind} "{name}" not found')
    return {f"{source.prefix or ''}{key}": value.decode() for key, value in (data or {}).items()}


def _value_from(pod: Pod, container: Container, facts: PodFacts, sources: Sources, source: EnvVarSource) -> str | None:
    if source.fieldRef:
        return field_value(pod, facts, source.fieldRef.fieldPath)
    if source.resourceFieldRef:
        return resource_value(pod, container, facts, source.resourceFieldRef)
    reference = source.configMapKeyRef or source.secretKeyRef
    if reference is None:
        raise MissingSourceError("unsupported valueFrom")
    namespace, name = identity(pod).namespace, reference.name or ""
    data = sources.config_map(namespace, name) if source.configMapKeyRef else sources.secret(namespace, name)
    kind = "configmap" if source.configMapKeyRef else "secret"
    if data is not None and reference.key in data:
        return data[reference.key].decode()
    if reference.optional:
        return None
    if data is None:
        raise MissingSourceError(f'{kind} "{name}" not found')
    raise MissingSourceError(f"couldn't find key {reference.key} in {kind} {namespace}/{name}")
