"""Packet filters of network namespaces, which drop all connections but the permitted ones.

The filters are nf_tables rules, set over netlink, so that the program `nft` isn't needed. Numbers are those of the
kernel's `linux/netfilter/nf_tables.h` and `nfnetlink.h`.
"""

import errno
import os
import socket
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from llmd_base.errors import KitError

from llmd_rehearsal.pods.networks import in_namespace

EVERYWHERE = IPv4Network("0.0.0.0/0")
LOOPBACK = IPv4Network("127.0.0.0/8")
MAX_PORT = 65535

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
_DESTINATION_PORT_OFFSET = 2
_EQUAL, _NOT_EQUAL, _AT_MOST, _AT_LEAST = 0, 1, 3, 5
_PROTOCOL = 16
_PROTOCOLS = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP, "SCTP": socket.IPPROTO_SCTP}
_ESTABLISHED_OR_RELATED = 2 | 4
_ANSWERS_BYTES = 65536
_TABLE = "policies"


@dataclass(frozen=True)
class _Direction:
    """Direction of packets: chain name, netfilter hook, and the offset in the IP header of the other end's address."""

    chain: str
    hook: int
    address_offset: int


_INCOMING, _OUTGOING = _Direction("input", 1, 12), _Direction("output", 3, 16)


@dataclass(frozen=True)
class Opening:
    """Permitted connections: the other end's IP range without the `excepted` ranges, protocol, and range of destination
    ports.

    For incoming connections `peer` is the source, for outgoing ones the destination. Without a protocol, all protocols
    and ports are permitted.
    """

    peer: IPv4Network
    excepted: tuple[IPv4Network, ...] = ()
    protocol: str = ""
    first_port: int = 1
    last_port: int = MAX_PORT

    def allows(self, address: str, port: int) -> bool:
        """Tell whether a TCP connection is among the permitted ones, given the other end's IP address and the
        destination port.
        """
        ip = IPv4Address(address)
        named = ip in self.peer and not any(ip in network for network in self.excepted)
        return named and self.protocol in {"", "TCP"} and self.first_port <= port <= self.last_port


@dataclass(frozen=True)
class PodOpenings:
    """Permitted connections of a pod by direction; None means unrestricted."""

    incoming: frozenset[Opening] | None = None
    outgoing: frozenset[Opening] | None = None


def unsupported() -> str | None:
    """Return the reason why this kernel can't filter packets for this process; None if packets can be filtered. The
    table that is created to find out is deleted.
    """
    try:
        trial = _chain(_INCOMING, [LOOPBACK], [Opening(LOOPBACK, (), "TCP", 1, 2)], _ACCEPT)
        _ask(None, [_table_message(_NEW_TABLE), *trial, _table_message(_DELETE_TABLE)])
    except OSError as error:
        return f"nf_tables: {error.strerror}"
    return None


def admit(
    namespace: Path,
    openings: PodOpenings,
    always_in: Sequence[IPv4Network] = (),
    always_out: Sequence[IPv4Network] = (),
) -> None:
    """Restrict a network namespace to the permitted connections and the answers to them.

    The kernel tracks connections from the first call on; answers to older connections would be dropped later.

    Raises:
        KitError: the kernel refused the rules.
    """
    try:
        chains = [
            *_direction(_INCOMING, openings.incoming, always_in),
            *_direction(_OUTGOING, openings.outgoing, always_out),
        ]
        # Deleting a missing table is an error, so that the table is created first; a batch is executed atomically.
        table = [_table_message(kind) for kind in (_NEW_TABLE, _DELETE_TABLE, _NEW_TABLE)]
        _ask(namespace, [*table, *chains])
    except OSError as error:
        if error.errno != errno.ENOENT:  # ENOENT: the pod's namespace was deleted
            raise KitError(f"no packet filter in {namespace.name}: {error.strerror}") from error


def _direction(
    direction: _Direction, openings: Collection[Opening] | None, always: Sequence[IPv4Network]
) -> list[bytes]:
    if openings is None:
        return _chain(direction, [], [], _ACCEPT)
    return _chain(direction, [LOOPBACK, *always], openings, _DROP)


def _chain(
    direction: _Direction, always: Sequence[IPv4Network], openings: Collection[Opening], otherwise: int
) -> list[bytes]:
    hook = _nested(4, _number(1, direction.hook), _number(2, 0))
    state = _expression("ct", _number(1, 1), _number(2, 0))
    chain = _text(1, _TABLE) + _text(3, direction.chain) + hook + _number(5, otherwise) + _text(7, "filter")
    answers = [state, _masked(struct.pack("=I", _ESTABLISHED_OR_RELATED)), _compared(_NOT_EQUAL, bytes(4))]
    allowed = [answers, *(_with(direction, network) for network in always)]
    for opening in openings:
        peer = _with(direction, opening.peer) if opening.peer != EVERYWHERE else []
        excepted = [part for network in opening.excepted for part in _with(direction, network, _NOT_EQUAL)]
        allowed.append([*peer, *excepted, *_ports(opening)])
    accept = _expression("immediate", _number(1, 0), _nested(2, _nested(2, _number(1, _ACCEPT))))
    of_chain = _text(1, _TABLE) + _text(2, direction.chain)
    rules = [of_chain + _nested(4, *conditions, accept) for conditions in allowed]
    return [_message(_NEW_CHAIN, _CREATE, chain), *(_message(_NEW_RULE, _CREATE | _APPEND, rule) for rule in rules)]


def _with(direction: _Direction, network: IPv4Network, comparison: int = _EQUAL) -> list[bytes]:
    address = _loaded(_NETWORK_HEADER, direction.address_offset, 4)
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
    """Send messages that the kernel executes all or not at all, and return once the kernel has answered."""
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
