"""NetworkPolicies: computation of each pod's permitted connections, and the packet filters that enforce them."""

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
from llmd_base.errors import KitError
from llmd_oke.operations.objects import metadata, texts

from llmd_rehearsal.pods.networks import Networks, node_network
from llmd_rehearsal.pods.packet_filters import EVERYWHERE, MAX_PORT, Opening, PodOpenings, admit
from llmd_rehearsal.services import SocketAddress
from llmd_rehearsal.watches import Changes, ObjectStore, identity

_log = logging.getLogger(__name__)
_GATHER_S = 0.02
_ENDED = {"Succeeded", "Failed"}
_EVERY_PORT = (1, MAX_PORT)

Openings = Mapping[str, PodOpenings]
"""Permitted connections by the IP address of the pod; pods that no policy selects are unrestricted and left out."""


@dataclass(frozen=True)
class _PodAddress:
    """Pod with an IP address of its own."""

    pod: Pod
    address: str
    network: IPv4Network
    namespace: str
    labels: Mapping[str, str]


class _Pods:
    """Pods with IP addresses, indexed by label for selectors."""

    def __init__(self, pods: Iterable[Pod], addresses: Mapping[str, str], network: IPv4Network | None) -> None:
        self.network = network
        self._all = [
            _PodAddress(pod, address, IPv4Network(address), meta.namespace or "", texts(meta, "labels"))
            for pod in pods
            if (address := address_of(pod, addresses)) and (meta := metadata(pod))
        ]
        self._by_label: dict[tuple[str, str | None], list[_PodAddress]] = {}
        for pod in self._all:
            for key, value in pod.labels.items():
                self._by_label.setdefault((key, value), []).append(pod)
                self._by_label.setdefault((key, None), []).append(pod)

    def selected(self, selector: LabelSelector | None) -> list[_PodAddress]:
        """Return the pods that match a label selector; all pods without a selector."""
        chosen = selector or LabelSelector()
        present = [rule.key for rule in chosen.matchExpressions or [] if rule.operator in {"Exists", "In"}]
        required = [*texts(chosen, "matchLabels").items(), *((key, None) for key in present)]
        fewest = min((self._by_label.get(label, []) for label in required), key=len, default=self._all)
        return [pod for pod in fewest if selects(chosen, pod.labels)]


def openings(
    pods: Iterable[Pod],
    policies: Iterable[NetworkPolicy],
    namespaces: Iterable[Namespace],
    addresses: Mapping[str, str] | None = None,
    network: IPv4Network | None = None,
) -> Openings:
    """Return the connections that NetworkPolicies permit from and to all pods that policies select.

    `addresses` has the IP addresses, by uid, of pods whose statuses don't have them yet. `network` contains all pods'
    addresses and is used in place of the single addresses if a rule permits the pods of all namespaces. Pods on their
    node's own network are left out, as Kubernetes leaves it undefined how policies apply to them.
    """
    addressed = _Pods(pods, addresses or {}, network)
    labels = {metadata(item).name or "": texts(metadata(item), "labels") for item in namespaces}
    incoming: dict[str, set[Opening]] = {}
    outgoing: dict[str, set[Opening]] = {}
    for policy in policies:
        spec, namespace = policy.spec or NetworkPolicySpec(), metadata(policy).namespace
        chosen = [pod for pod in addressed.selected(spec.podSelector) if pod.namespace == namespace]
        if not chosen:
            continue
        # A policy without types applies to incoming connections, and to outgoing ones if it has egress rules.
        types = spec.policyTypes or ["Ingress", *(["Egress"] if spec.egress else [])]
        if "Ingress" in types:
            come_in = [(rule.from_, rule.ports) for rule in spec.ingress or []]
            rules = [(_peers(peers, namespace, addressed, labels), ports or []) for peers, ports in come_in]
            for pod in chosen:
                incoming.setdefault(pod.address, set()).update(_permitted(rules, pod.pod))
        if "Egress" in types:
            go_out = [(rule.to, rule.ports) for rule in spec.egress or []]
            rules = [(_peers(peers, namespace, addressed, labels), ports or []) for peers, ports in go_out]
            destinations = set(_permitted(rules))
            for pod in chosen:
                outgoing.setdefault(pod.address, set()).update(destinations)
    return {
        address: PodOpenings(_frozen(incoming.get(address)), _frozen(outgoing.get(address)))
        for address in {*incoming, *outgoing}
    }


def _frozen(openings: set[Opening] | None) -> frozenset[Opening] | None:
    return None if openings is None else frozenset(openings)


@dataclass(frozen=True)
class _Peer:
    """Other end of connections: an IP range without the excepted ranges, and the pod if the range is one pod's
    address.
    """

    network: IPv4Network
    excepted: tuple[IPv4Network, ...] = ()
    pod: Pod | None = None


_Rule = tuple[Sequence[_Peer], Sequence[NetworkPolicyPort]]


def _peers(
    peers: Sequence[NetworkPolicyPeer] | None,
    namespace: str | None,
    pods: _Pods,
    labels: Mapping[str, Mapping[str, str]],
) -> Sequence[_Peer]:
    """Return the peers that a rule names; all addresses if it names none."""
    if not peers:
        return [_Peer(EVERYWHERE)]
    return [item for peer in peers for item in _resolved_peers(peer, namespace, pods, labels)]


def _resolved_peers(
    peer: NetworkPolicyPeer, namespace: str | None, pods: _Pods, labels: Mapping[str, Mapping[str, str]]
) -> Iterable[_Peer]:
    if peer.ipBlock is not None:
        yield _Peer(IPv4Network(peer.ipBlock.cidr), tuple(map(IPv4Network, peer.ipBlock.except_ or [])))
        return
    if peer.namespaceSelector == LabelSelector() and peer.podSelector is None and pods.network is not None:
        yield _Peer(pods.network)
        return
    for pod in pods.selected(peer.podSelector):
        in_namespace = (
            pod.namespace == namespace
            if peer.namespaceSelector is None
            else selects(peer.namespaceSelector, labels.get(pod.namespace, {}))
        )
        if in_namespace:
            yield _Peer(pod.network, (), pod.pod)


def _permitted(rules: Iterable[_Rule], target: Pod | None = None) -> Iterable[Opening]:
    """Yield the permitted connections to one pod, or without a pod to the rules' peers; named ports are those of the
    pod that is connected to.
    """
    for peers, ports in rules:
        for peer in peers:
            for protocol, first, last in _ports(ports, target or peer.pod):
                yield Opening(peer.network, peer.excepted, protocol, first, last)


def _ports(ports: Sequence[NetworkPolicyPort], target: Pod | None) -> Iterable[tuple[str, int, int]]:
    if not ports:
        yield "", *_EVERY_PORT
    for port in ports:
        protocol = port.protocol or "TCP"
        if port.port is None:
            yield protocol, *_EVERY_PORT
        elif isinstance(port.port, int):
            yield protocol, port.port, port.endPort or port.port
        elif target is not None and (spec := target.spec):
            for container in [*(spec.initContainers or []), *spec.containers]:
                for own in container.ports or []:
                    if own.name == port.port and (own.protocol or "TCP") == protocol:
                        yield protocol, own.containerPort, own.containerPort


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Tell whether a label selector matches these labels; an empty selector matches all."""
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


def address_of(pod: Pod, addresses: Mapping[str, str]) -> str:
    """Return a pod's own IP address; empty if the pod has none or has ended."""
    status = pod.status or PodStatus()
    if (pod.spec and pod.spec.hostNetwork) or status.phase in _ENDED:
        return ""
    return addresses.get(identity(pod).uid) or status.podIP or ""


class NetworkPolicyFilter:
    """Enforcement of NetworkPolicies: updates packet filters when pods, namespaces or policies change, and answers the
    Service proxy.

    Connections from nodes, among them the API server's and probes, are always permitted, as Kubernetes permits them
    from a pod's own node. Every pod may connect to nodes and to addresses of Services, whose proxy asks `allows` on the
    pod's behalf.
    """

    def __init__(
        self,
        pods: ObjectStore[Pod],
        policies: ObjectStore[NetworkPolicy],
        namespaces: ObjectStore[Namespace],
        networks: Networks,
        pod_network: IPv4Interface,
        service_network: IPv4Network,
    ) -> None:
        self._pods, self._policies, self._namespaces = pods, policies, namespaces
        self._networks = networks
        self._nodes: IPv4Network = node_network(pod_network)
        self._pod_network = pod_network.network
        self._service_network = service_network
        self._openings: Openings = {}
        self._applied: dict[Path, PodOpenings] = {}
        self._seen: dict[str, object] = {}
        self._changes = Changes(_GATHER_S)
        pods.subscribe(self._pod_changed)
        policies.subscribe(self._changes.note)
        namespaces.subscribe(self._changes.note)

    def allows(self, source: str, target: SocketAddress) -> bool:
        """Tell whether a TCP connection from the address `source` to `target` is permitted."""
        if source == target.ip:
            return True
        outgoing = self._openings.get(source, PodOpenings()).outgoing
        incoming = self._openings.get(target.ip, PodOpenings()).incoming
        goes_out = IPv4Address(target.ip) in self._nodes or _allows(outgoing, target.ip, target.port)
        comes_in = IPv4Address(source) in self._nodes or _allows(incoming, source, target.port)
        return goes_out and comes_in

    async def run(self) -> None:
        """Update the packet filters after changes until cancelled."""
        self._networks.attached = self._attached
        await self._changes.follow(self._look)

    async def _look(self) -> None:
        policies, namespaces = list(self._policies), list(self._namespaces)
        pods, addresses = list(self._pods), dict(self._networks.by_owner)
        self._openings = await asyncio.to_thread(openings, pods, policies, namespaces, addresses, self._pod_network)
        await asyncio.to_thread(self._apply, dict(self._networks.by_address))

    def _apply(self, networks: Mapping[str, Path]) -> None:
        """Update the packet filters that differ. Deleted network namespaces lose their filters by themselves.

        Not to be called in the event loop's thread: the kernel takes about 10 ms for each filter, mostly waiting.
        """
        self._applied = {path: of_pod for path, of_pod in self._applied.items() if path in networks.values()}
        for address, path in networks.items():
            openings, always = self._openings.get(address, PodOpenings()), [IPv4Network(address), self._nodes]
            if openings == self._applied.get(path, PodOpenings()):
                continue
            if _admit(path, openings, always, [*always, self._service_network]):
                self._applied[path] = openings

    async def _attached(self, namespace: Path) -> None:
        await asyncio.to_thread(_admit, namespace, PodOpenings(), [], [])
        self._changes.note()

    def _pod_changed(self, pod: Pod, exists: bool) -> None:  # a store's subscriber
        uid = identity(pod).uid
        now = (address_of(pod, {}), texts(metadata(pod), "labels")) if exists else None
        if self._seen.get(uid) != now:
            self._seen[uid] = now
            self._changes.note()
        if not exists:
            self._seen.pop(uid, None)


def _allows(openings: frozenset[Opening] | None, address: str, port: int) -> bool:
    return openings is None or any(opening.allows(address, port) for opening in openings)


def _admit(
    namespace: Path, openings: PodOpenings, always_in: Sequence[IPv4Network], always_out: Sequence[IPv4Network]
) -> bool:
    try:
        admit(namespace, openings, always_in, always_out)
    except KitError as error:
        _log.error("policies of %s: %s", namespace.name, error)
        return False
    return True
