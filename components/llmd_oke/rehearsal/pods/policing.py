"""Keeps the packet filters of pods' networks as NetworkPolicies say."""

import asyncio
import logging
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.networking_v1 import NetworkPolicy

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.pods import filters
from llmd_oke.rehearsal.pods.networks import Networks, node_network
from llmd_oke.rehearsal.services.policies import Opening, Openings, address_of, openings
from llmd_oke.rehearsal.services.table import Address
from llmd_oke.rehearsal.watches import Store, identity, metadata, texts

_log = logging.getLogger(__name__)
_GATHER_S = 0.02


class Policing:
    """Follows pods, namespaces and policies. What comes from nodes is let in everywhere, the API server's requests and
    probes among it, as Kubernetes has it for a pod's own node.
    """

    def __init__(
        self,
        pods: Store[Pod],
        policies: Store[NetworkPolicy],
        namespaces: Store[Namespace],
        networks: Networks,
        bridge: IPv4Interface,
    ) -> None:
        self._pods, self._policies, self._namespaces = pods, policies, namespaces
        self._networks = networks
        self._nodes: IPv4Network = node_network(bridge)
        self._openings: Openings = {}
        self._applied: dict[Path, frozenset[Opening]] = {}
        self._seen: dict[str, object] = {}
        self._dirty = asyncio.Event()
        pods.subscribe(self._pod_changed)
        policies.subscribe(self._changed)
        namespaces.subscribe(self._changed)

    def lets_in(self, source: str, target: Address) -> bool:
        """Whether a connection from one address to another may be made on behalf of a pod."""
        found = self._openings.get(target.ip)
        if found is None or source == target.ip or IPv4Address(source) in self._nodes:
            return True
        return any(each.lets_in(source, target.port) for each in found)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        self._networks.attached = self._attached
        while True:
            self._dirty.clear()
            self._openings = openings(self._pods, self._policies, self._namespaces, self._networks.by_owner)
            self._apply()
            await self._dirty.wait()
            await asyncio.sleep(_GATHER_S)

    def _apply(self) -> None:
        """Change what differs. Networks that are gone took their filters with them."""
        networks = self._networks.by_address
        self._applied = {path: of_pod for path, of_pod in self._applied.items() if path in networks.values()}
        for address, path in networks.items():
            wanted = self._openings.get(address)
            if wanted == self._applied.get(path):
                continue
            if not _admit(path, [IPv4Network(address), self._nodes], wanted):
                continue
            if wanted is None:
                del self._applied[path]
            else:
                self._applied[path] = wanted

    def _attached(self, namespace: Path) -> None:
        _admit(namespace, [], None)
        self._dirty.set()

    def _pod_changed(self, pod: Pod, exists: bool) -> None:  # a store's subscriber
        uid = identity(pod).uid
        now = (address_of(pod, {}), texts(metadata(pod), "labels")) if exists else None
        if self._seen.get(uid) != now:
            self._seen[uid] = now
            self._dirty.set()
        if not exists:
            self._seen.pop(uid, None)

    def _changed(self, thing: object, exists: bool) -> None:  # noqa: ARG002  # a store's subscriber
        self._dirty.set()


def _admit(namespace: Path, always: Sequence[IPv4Network], openings: frozenset[Opening] | None) -> bool:
    try:
        filters.admit(namespace, always, openings)
    except KitError as error:
        _log.error("policies of %s: %s", namespace.name, error)
        return False
    return True
