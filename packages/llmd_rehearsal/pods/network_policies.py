"""NetworkPolicies of pods: who may connect to which, by the policies alone, and the packet filters that see to it.

Incoming connections only.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from lightkube.models.core_v1 import PodStatus
from lightkube.models.meta_v1 import LabelSelector
from lightkube.models.networking_v1 import NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.networking_v1 import NetworkPolicy
from llmd_oke.operations.objects import metadata, texts
from llmd_pods.errors import KitError

from llmd_rehearsal.pods.networks import Networks, node_network
from llmd_rehearsal.pods.packet_filters import EVERYWHERE, MOST_PORT, Opening, admit
from llmd_rehearsal.services import Address
from llmd_rehearsal.watches import Changes, Store, identity

_log = logging.getLogger(__name__)
_GATHER_S = 0.02
_ENDED = {"Succeeded", "Failed"}
_EVERY_PORT = (1, MOST_PORT)

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


class NetworkPolicyFilter:
    """Follows pods, namespaces and policies. What comes from nodes is let in everywhere, the API server's requests and
    probes among it, as Kubernetes has it for a pod's own node.
    """

    def __init__(
        self,
        pods: Store[Pod],
        policies: Store[NetworkPolicy],
        namespaces: Store[Namespace],
        networks: Networks,
        pod_network: IPv4Interface,
    ) -> None:
        self._pods, self._policies, self._namespaces = pods, policies, namespaces
        self._networks = networks
        self._nodes: IPv4Network = node_network(pod_network)
        self._openings: Openings = {}
        self._applied: dict[Path, frozenset[Opening]] = {}
        self._seen: dict[str, object] = {}
        self._changes = Changes(_GATHER_S)
        pods.subscribe(self._pod_changed)
        policies.subscribe(self._changes.note)
        namespaces.subscribe(self._changes.note)

    def lets_in(self, source: str, target: Address) -> bool:
        """Whether a connection from one address to another may be made on behalf of a pod."""
        openings = self._openings.get(target.ip)
        if openings is None or source == target.ip or IPv4Address(source) in self._nodes:
            return True
        return any(opening.lets_in(source, target.port) for opening in openings)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        self._networks.attached = self._attached
        await self._changes.follow(self._look)

    async def _look(self) -> None:
        policies, namespaces = list(self._policies), list(self._namespaces)
        pods, addresses = list(self._pods), dict(self._networks.by_owner)
        self._openings = await asyncio.to_thread(openings, pods, policies, namespaces, addresses)
        await asyncio.to_thread(self._apply, dict(self._networks.by_address))

    def _apply(self, networks: Mapping[str, Path]) -> None:
        """Change what differs. Networks that are gone took their filters with them.

        Not for the event loop's thread: the kernel takes some 10 ms for each, most of it waiting.
        """
        self._applied = {path: of_pod for path, of_pod in self._applied.items() if path in networks.values()}
        for address, path in networks.items():
            openings = self._openings.get(address)
            if openings == self._applied.get(path):
                continue
            if _admit(path, [IPv4Network(address), self._nodes], openings):
                self._applied.pop(path, None)
                if openings is not None:
                    self._applied[path] = openings

    async def _attached(self, namespace: Path) -> None:
        await asyncio.to_thread(_admit, namespace, [], None)
        self._changes.note()

    def _pod_changed(self, pod: Pod, exists: bool) -> None:  # a store's subscriber
        uid = identity(pod).uid
        now = (address_of(pod, {}), texts(metadata(pod), "labels")) if exists else None
        if self._seen.get(uid) != now:
            self._seen[uid] = now
            self._changes.note()
        if not exists:
            self._seen.pop(uid, None)


def _admit(namespace: Path, always: Sequence[IPv4Network], openings: frozenset[Opening] | None) -> bool:
    try:
        admit(namespace, always, openings)
    except KitError as error:
        _log.error("policies of %s: %s", namespace.name, error)
        return False
    return True
