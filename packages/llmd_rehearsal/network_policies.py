"""Who may connect to which pods, by the NetworkPolicies alone; incoming connections only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from lightkube.models.core_v1 import PodStatus
from lightkube.models.meta_v1 import LabelSelector
from lightkube.models.networking_v1 import NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.networking_v1 import NetworkPolicy
from llmd_oke.operations.objects import metadata, texts

from llmd_rehearsal.watches import identity

EVERYWHERE = IPv4Network("0.0.0.0/0")
_ENDED = {"Succeeded", "Failed"}
_MOST = 65535
_EVERY_PORT = (1, _MOST)


@dataclass(frozen=True)
class Opening:
    """Connections that may come in: from where, but for `excepted`, by which protocol, to which ports.

    Without a protocol all of them and all ports.
    """

    source: IPv4Network
    excepted: tuple[IPv4Network, ...] = ()
    protocol: str = ""
    first_port: int = 1
    last_port: int = _MOST

    def lets_in(self, address: str, port: int) -> bool:
        """Whether it lets a TCP connection in."""
        ip = IPv4Address(address)
        named = ip in self.source and not any(ip in network for network in self.excepted)
        return named and self.protocol in {"", "TCP"} and self.first_port <= port <= self.last_port


Openings = Mapping[str, frozenset[Opening]]
"""By address of a pod that some policy chooses; all others are open."""


@dataclass(frozen=True)
class _PodAddress:
    """A pod with an address of its own."""

    pod: Pod
    address: str
    network: IPv4Network
    namespace: str
    labels: Mapping[str, str]


class _Pods:
    """Pods with addresses, which selectors find by their labels without a look at all of them."""

    def __init__(self, pods: Iterable[Pod], known: Mapping[str, str]) -> None:
        self._all = [
            _PodAddress(pod, address, IPv4Network(address), meta.namespace or "", texts(meta, "labels"))
            for pod in pods
            if (address := address_of(pod, known)) and (meta := metadata(pod))
        ]
        self._by_label: dict[tuple[str, str | None], list[_PodAddress]] = {}
        for pod in self._all:
            for key, value in pod.labels.items():
                self._by_label.setdefault((key, value), []).append(pod)
                self._by_label.setdefault((key, None), []).append(pod)

    def selected(self, selector: LabelSelector | None) -> list[_PodAddress]:
        """The pods that a selector chooses; all of them without one."""
        chosen = selector or LabelSelector()
        present = [rule.key for rule in chosen.matchExpressions or [] if rule.operator in {"Exists", "In"}]
        required = [*texts(chosen, "matchLabels").items(), *((key, None) for key in present)]
        fewest = min((self._by_label.get(label, []) for label in required), key=len, default=self._all)
        return [pod for pod in fewest if selects(chosen, pod.labels)]


def openings(
    pods: Iterable[Pod],
    policies: Iterable[NetworkPolicy],
    namespaces: Iterable[Namespace],
    known: Mapping[str, str] | None = None,
) -> Openings:
    """Give who may connect to the pods that policies choose; `known` has addresses by uid that no status has yet.

    Pods on their node's own network are left out, as Kubernetes leaves it open what policies do with them.
    """
    addressed = _Pods(pods, known or {})
    labels = {metadata(item).name or "": texts(metadata(item), "labels") for item in namespaces}
    by_address: dict[str, set[Opening]] = {}
    for policy in policies:
        spec = policy.spec or NetworkPolicySpec()
        if "Ingress" not in (spec.policyTypes or ["Ingress"]):
            continue
        chosen = [pod for pod in addressed.selected(spec.podSelector) if pod.namespace == metadata(policy).namespace]
        rules = list(_rules(spec, metadata(policy).namespace, addressed, labels)) if chosen else []
        for pod in chosen:
            by_address.setdefault(pod.address, set()).update(_to_pod(rules, pod.pod))
    return {address: frozenset(of_pod) for address, of_pod in by_address.items()}


_Source = tuple[IPv4Network, tuple[IPv4Network, ...]]
_Rule = tuple[Sequence[_Source], Sequence[NetworkPolicyPort]]


def _rules(
    spec: NetworkPolicySpec, namespace: str | None, pods: _Pods, labels: Mapping[str, Mapping[str, str]]
) -> Iterable[_Rule]:
    for rule in spec.ingress or []:
        sources = [source for peer in rule.from_ or [] for source in _sources(peer, namespace, pods, labels)]
        yield sources if rule.from_ else [(EVERYWHERE, ())], rule.ports or []


def _to_pod(rules: Iterable[_Rule], target: Pod) -> Iterable[Opening]:
    for sources, ports in rules:
        for protocol, first, last in _ports(ports, target):
            for source, excepted in sources:
                yield Opening(source, excepted, protocol, first, last)


def _sources(
    peer: NetworkPolicyPeer, namespace: str | None, pods: _Pods, labels: Mapping[str, Mapping[str, str]]
) -> Iterable[_Source]:
    if peer.ipBlock is not None:
        yield IPv4Network(peer.ipBlock.cidr), tuple(map(IPv4Network, peer.ipBlock.except_ or []))
        return
    for pod in pods.selected(peer.podSelector):
        in_namespace = (
            pod.namespace == namespace
            if peer.namespaceSelector is None
            else selects(peer.namespaceSelector, labels.get(pod.namespace, {}))
        )
        if in_namespace:
            yield pod.network, ()


def _ports(ports: Sequence[NetworkPolicyPort], target: Pod) -> Iterable[tuple[str, int, int]]:
    if not ports:
        yield "", *_EVERY_PORT
    for port in ports:
        protocol = port.protocol or "TCP"
        if port.port is None:
            yield protocol, *_EVERY_PORT
        elif isinstance(port.port, int):
            yield protocol, port.port, port.endPort or port.port
        else:
            yield from ((protocol, number, number) for number in _named(target, port.port, protocol))


def _named(pod: Pod, name: str, protocol: str) -> Iterable[int]:
    spec = pod.spec
    for container in [*(spec.initContainers or []), *spec.containers] if spec else []:
        for port in container.ports or []:
            if port.name == name and (port.protocol or "TCP") == protocol:
                yield port.containerPort


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether a selector chooses what has these labels; an empty one chooses all."""
    if not texts(selector, "matchLabels").items() <= labels.items():
        return False
    for rule in selector.matchExpressions or []:
        outcomes = {
            "Exists": rule.key in labels,
            "DoesNotExist": rule.key not in labels,
            "In": labels.get(rule.key) in (rule.values or []),
            "NotIn": labels.get(rule.key) not in (rule.values or []),
        }
        if not outcomes[rule.operator]:
            return False
    return True


def address_of(pod: Pod, known: Mapping[str, str]) -> str:
    """The pod's own address; empty where it has none, or no longer."""
    status = pod.status or PodStatus()
    if (pod.spec and pod.spec.hostNetwork) or status.phase in _ENDED:
        return ""
    return known.get(identity(pod).uid) or status.podIP or ""
