"""The rules of a cluster's network security groups: the rows of the table that apply, one by one."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from llmd_oke.catalogue import network as facts
from llmd_oke.catalogue.network import Direction, GroupRole, Outside, Protocol, RuleEntry

PROTOCOL_NUMBERS: Mapping[Protocol, str] = {"tcp": "6", "udp": "17", "icmp": "1", "all": "all"}
"""IANA's protocol numbers, as OCI wants them."""

PATH_DISCOVERY = (3, 4)
"""ICMP type and code of "fragmentation needed", the only ICMP that rules let through (terraform-oci-oke, rules.tf)."""

ANYWHERE = "0.0.0.0/0"


@dataclass(frozen=True)
class Ports:
    """A range of ports, both ends inclusive."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Peer:
    """The other side of a rule: another group, a range of addresses, or (neither) all Oracle services of the region."""

    group: GroupRole | None = None
    cidr: str | None = None

    def __str__(self) -> str:
        return self.group or self.cidr or "oracle-services"


@dataclass(frozen=True)
class SecurityRule:
    """One rule of a group. Without ports it is for all of them."""

    group: GroupRole
    direction: Direction
    protocol: Protocol
    ports: Ports | None
    source_ports: Ports | None
    peer: Peer
    description: str

    @property
    def key(self) -> str:
        """A name for the rule, unique among its group's and the same as long as the rule is."""
        ports = [str(self.ports)] if self.ports else []
        source_ports = [f"from-{self.source_ports}"] if self.source_ports else []
        return "-".join([self.direction, self.protocol, *ports, *source_ports, _dashed(str(self.peer))])


@dataclass(frozen=True)
class RuleContext:
    """What decides which rows of the table apply, and what their peers are.

    `cidrs` has the ranges of each peer outside of groups but `internet` and `oracle-services`; a peer without ranges
    (an empty allow list, no bastion subnet) has no rules.
    """

    groups: Collection[GroupRole]
    cni: str
    worker_internet: bool
    pod_internet: bool
    cidrs: Mapping[str, Sequence[str]]


def security_rules(context: RuleContext) -> list[SecurityRule]:
    """All rules of all groups that are there, in the order of the table, none twice."""
    rows = (entry for entry in facts.security_rules() if _applies(entry, context))
    return list({(rule.group, rule.key): rule for entry in rows for rule in _rules(entry, context)}.values())


def _applies(entry: RuleEntry, context: RuleContext) -> bool:
    allowed = {None: True, "worker-internet": context.worker_internet, "pod-internet": context.pod_internet}
    return entry.cni in (None, context.cni) and allowed[entry.needs]


def _rules(entry: RuleEntry, context: RuleContext) -> Iterator[SecurityRule]:
    peers = [peer for named in entry.peers for peer in _peers(named, context)]
    ports, source_ports = _ports(entry.ports), _ports(entry.source_ports)
    for group in entry.roles:
        if group in context.groups:
            for direction, protocol, peer in product(entry.directions, entry.protocols, peers):
                yield SecurityRule(group, direction, protocol, ports, source_ports, peer, entry.description)


def _peers(named: GroupRole | Outside, context: RuleContext) -> list[Peer]:
    """What a row means by a peer: nothing where that is not there, several ranges for an allow list."""
    if named == "oracle-services":
        return [Peer()]
    if named == "internet":
        return [Peer(cidr=ANYWHERE)]
    groups = [Peer(group=group) for group in context.groups if group == named]
    return groups or [Peer(cidr=cidr) for cidr in context.cidrs.get(named, ())]


def _ports(written: str | None) -> Ports | None:
    if written is None:
        return None
    first, _, last = written.partition("-")
    return Ports(int(first), int(last or first))


def _dashed(peer: str) -> str:
    return "anywhere" if peer == ANYWHERE else peer.translate(str.maketrans("._/", "---"))
