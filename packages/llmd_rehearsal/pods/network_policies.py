"""NetworkPolicies of pods, kept by packet filters of their network namespaces.

The filter is nf_tables, asked over netlink, as no program for it need be there. Numbers are those of the kernel's
`linux/netfilter/nf_tables.h` and `nfnetlink.h`.
"""

import asyncio
import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.resources.networking_v1 import NetworkPolicy
from llmd_oke.operations.objects import metadata, texts
from llmd_pods.errors import KitError

from llmd_rehearsal.network_policies import EVERYWHERE, Opening, Openings, address_of, openings
from llmd_rehearsal.pods.networks import Networks, in_namespace, node_network
from llmd_rehearsal.services import Address
from llmd_rehearsal.watches import Store, identity

_log = logging.getLogger(__name__)
_GATHER_S = 0.02
_SHARE = 4
"""How many times as long as its last look a change waits at most."""
_NETLINK_NETFILTER = 12
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_NF_TABLES = 10
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 2, 3, 6
_REQUEST, _CREATE, _APPEND = 0x001, 0x400, 0x800
_ERROR = 2
_IPV4 = 2
_DROP, _ACCEPT = 0, 1
_NESTED = 0x8000
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_SOURCE_OFFSET, _DESTINATION_PORT_OFFSET = 12, 2
_EQUAL, _NOT_EQUAL, _AT_MOST, _AT_LEAST = 0, 1, 3, 5
_PROTOCOL = 16
_PROTOCOLS = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP, "SCTP": socket.IPPROTO_SCTP}
_ESTABLISHED_OR_RELATED = 2 | 4
_ANSWERS_BYTES = 65536
_TABLE, _CHAIN = "policies", "input"
LOOPBACK = IPv4Network("127.0.0.0/8")


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
        self._dirty = asyncio.Event()
        pods.subscribe(self._pod_changed)
        policies.subscribe(self._changed)
        namespaces.subscribe(self._changed)

    def lets_in(self, source: str, target: Address) -> bool:
        """Whether a connection from one address to another may be made on behalf of a pod."""
        openings = self._openings.get(target.ip)
        if openings is None or source == target.ip or IPv4Address(source) in self._nodes:
            return True
        return any(opening.lets_in(source, target.port) for opening in openings)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        self._networks.attached = self._attached
        while True:
            self._dirty.clear()
            began_s = time.monotonic()
            policies, namespaces = list(self._policies), list(self._namespaces)
            pods, addresses = list(self._pods), dict(self._networks.by_owner)
            self._openings = await asyncio.to_thread(openings, pods, policies, namespaces, addresses)
            await asyncio.to_thread(self._apply, dict(self._networks.by_address))
            took_s = time.monotonic() - began_s
            await self._dirty.wait()
            await asyncio.sleep(max(_GATHER_S, _SHARE * took_s))

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
        admit(namespace, always, openings)
    except KitError as error:
        _log.error("policies of %s: %s", namespace.name, error)
        return False
    return True


def unsupported() -> str | None:
    """Why this kernel can't filter for the caller; None where it can. Nothing is left of the trial."""
    try:
        _ask(None, [*_table([LOOPBACK], [Opening(LOOPBACK, (), "TCP", 1, 2)], _ACCEPT), _table_message(_DELETE_TABLE)])
    except OSError as error:
        return f"nf_tables: {error.strerror}"
    return None


def admit(namespace: Path, always: Sequence[IPv4Network], openings: Collection[Opening] | None) -> None:
    """Let only these connections into a network namespace, and answers; all of them with None.

    The kernel follows connections from the first call on: answers to those that are older would be kept out later.

    Raises:
        KitError: the kernel refuses.
    """
    try:
        table = _table([], [], _ACCEPT) if openings is None else _table([LOOPBACK, *always], openings, _DROP)
        # A table that isn't there can't be deleted, so it is made first; all of a batch happens at once.
        _ask(namespace, [_table_message(_NEW_TABLE), _table_message(_DELETE_TABLE), *table])
    except OSError as error:
        if error.errno != errno.ENOENT:  # the pod is gone
            raise KitError(f"no packet filter in {namespace.name}: {error.strerror}") from error


def _table(always: Sequence[IPv4Network], openings: Collection[Opening], otherwise: int) -> list[bytes]:
    hook = _nested(4, _number(1, 1), _number(2, 0))  # packets for this namespace, at the filters' place
    state = _expression("ct", _number(1, 1), _number(2, 0))
    chain = _text(1, _TABLE) + _text(3, _CHAIN) + hook + _number(5, otherwise) + _text(7, "filter")
    return [
        _table_message(_NEW_TABLE),
        _message(_NEW_CHAIN, _CREATE, chain),
        _rule([state, _masked(struct.pack("=I", _ESTABLISHED_OR_RELATED)), _compared(_NOT_EQUAL, bytes(4))]),
        *(_rule(_from(network)) for network in always),
        *(_rule([*_source(opening), *_ports(opening)]) for opening in openings),
    ]


def _source(opening: Opening) -> list[bytes]:
    excepted = [part for network in opening.excepted for part in _from(network, _NOT_EQUAL)]
    return [*(_from(opening.source) if opening.source != EVERYWHERE else ()), *excepted]


def _from(network: IPv4Network, comparison: int = _EQUAL) -> list[bytes]:
    address = _loaded(_NETWORK_HEADER, _SOURCE_OFFSET, 4)
    return [address, _masked(network.netmask.packed), _compared(comparison, network.network_address.packed)]


def _ports(opening: Opening) -> list[bytes]:
    if not opening.protocol:
        return []
    protocol = _expression("meta", _number(1, 1), _number(2, _PROTOCOL))
    port = _loaded(_TRANSPORT_HEADER, _DESTINATION_PORT_OFFSET, 2)
    return [
        protocol,
        _compared(_EQUAL, bytes([_PROTOCOLS[opening.protocol]])),
        port,
        _compared(_AT_LEAST, struct.pack(">H", opening.first_port)),
        _compared(_AT_MOST, struct.pack(">H", opening.last_port)),
    ]


def _loaded(header: int, offset: int, size: int) -> bytes:
    return _expression("payload", _number(1, 1), _number(2, header), _number(3, offset), _number(4, size))


def _masked(mask: bytes) -> bytes:
    data = (_nested(4, _attribute(1, mask)), _nested(5, _attribute(1, bytes(len(mask)))))
    return _expression("bitwise", _number(1, 1), _number(2, 1), _number(3, len(mask)), *data)


def _compared(comparison: int, data: bytes) -> bytes:
    return _expression("cmp", _number(1, 1), _number(2, comparison), _nested(3, _attribute(1, data)))


def _rule(conditions: Sequence[bytes]) -> bytes:
    accept = _expression("immediate", _number(1, 0), _nested(2, _nested(2, _number(1, _ACCEPT))))
    body = _text(1, _TABLE) + _text(2, _CHAIN) + _nested(4, *conditions, accept)
    return _message(_NEW_RULE, _CREATE | _APPEND, body)


def _table_message(kind: int) -> bytes:
    return _message(kind, _CREATE if kind == _NEW_TABLE else 0, _text(1, _TABLE))


def _expression(name: str, *attributes: bytes) -> bytes:
    return _nested(1, _text(1, name), _nested(2, *attributes))


def _nested(kind: int, *parts: bytes) -> bytes:
    return _attribute(kind | _NESTED, b"".join(parts))


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack(">I", value))


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return _framed((_NF_TABLES << 8) | kind, flags, _IPV4, 0, body)


def _framed(kind: int, flags: int, family: int, resource: int, body: bytes) -> bytes:
    content = struct.pack("=BBH", family, 0, socket.htons(resource)) + body
    return struct.pack("=IHHII", 16 + len(content), kind, flags | _REQUEST, 0, 0) + content


def _ask(namespace: Path | None, messages: Sequence[bytes]) -> None:
    """Have messages done at once, or none of them; the kernel has answered when they are sent."""
    begin, end = (_framed(kind, 0, 0, _NF_TABLES, b"") for kind in (_BATCH_BEGIN, _BATCH_END))
    with in_namespace(_netlink, None if namespace is None else str(namespace)) as connection:
        connection.sendto(b"".join([begin, *messages, end]), (0, 0))
        while True:
            try:
                _raise_refusal(connection.recv(_ANSWERS_BYTES))
            except BlockingIOError:
                return


def _netlink() -> socket.socket:
    connection = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    connection.bind((0, 0))
    connection.setblocking(False)
    return connection


def _raise_refusal(answers: bytes) -> None:
    while answers:
        length, kind = struct.unpack_from("=IH", answers)
        if kind == _ERROR:
            (code,) = struct.unpack_from("=i", answers, 16)
            if code:
                raise OSError(-code, os.strerror(-code))
        answers = answers[(length + 3) & ~3 :]
