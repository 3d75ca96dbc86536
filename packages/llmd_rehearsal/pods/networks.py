"""A network namespace with an address of its own for each pod, one hop from all others, and sockets inside of it.

Each pod has a link of its own to the local cluster's namespace, which forwards: neighbours are known by one permanent
entry at each end. With pods side by side on a bridge each pair that talks would take two entries of the kernel's table,
which has room for 1,024 of all namespaces (`net.ipv4.neigh.default.gc_thresh3`), and a bridge has 1,024 ports.
"""

import asyncio
import ctypes
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

from llmd_base.errors import KitError

from llmd_rehearsal.pods.processes import run, run_checked

NAMESPACES = Path("/run/netns")
_PREFIX = "pod-"
_MAC, _GATEWAY_MAC = "02:00:00:00:00:02", "02:00:00:00:00:01"
"""Addresses of the two ends of each link, which has no others."""

_NODES_PREFIX, _PODS_PREFIX = 22, 25
"""The network of all nodes, and that of the pods of one: 110 pods are the most that a node of OKE may have."""


class AddressPool:
    """Pod addresses: node number n (from 0) has the n+1st /25 of the pod network after that of the nodes."""

    def __init__(self, pod_network: IPv4Interface) -> None:
        self._base = node_network(pod_network).broadcast_address + 1
        self._used: set[str] = set()

    def take(self, node_index: int, preferred: str | None = None) -> str:
        """Give a free address, `preferred` if that is free; KitError when the node has no more."""
        if preferred is not None and preferred not in self._used:
            self._used.add(preferred)
            return preferred
        subnet = IPv4Network((self._base, _PODS_PREFIX))
        hosts = IPv4Network((self._base + node_index * subnet.num_addresses, _PODS_PREFIX)).hosts()
        free = next((address for host in hosts if (address := str(host)) not in self._used), None)
        if free is None:
            raise KitError(f"node number {node_index} has no free pod address")
        self._used.add(free)
        return free

    def give_back(self, address: str) -> None:
        """Release an address."""
        self._used.discard(address)


def node_network(pod_network: IPv4Interface) -> IPv4Network:
    """Network of the nodes' addresses and the local cluster's own: the first /22 of the pod network."""
    return IPv4Network((pod_network.network.network_address, _NODES_PREFIX))


class Networks:
    """Network namespaces, made and removed by `ip`; names are the caller's, kept short by it."""

    def __init__(self, pod_network: IPv4Interface) -> None:
        self._gateway = pod_network.ip
        self._node_networks: dict[str, asyncio.Task[Path]] = {}
        self.by_address: dict[str, Path] = {}
        """The namespaces of pods by their addresses."""
        self.by_owner: dict[str, str] = {}
        """The addresses of pods by their uids, before their statuses have them."""
        self.attached: Callable[[Path], Awaitable[None]] | None = None
        """Awaited with each new one, before it is in `by_address` and before anything runs in it."""

    async def attach(self, name: str, address: str, link: str, owner: str = "") -> Path:
        """Make namespace `name` with `address` on its eth0, whose other end is `link`, for pod `owner`.

        KitError when that fails; what was made of it is gone then.
        """
        try:
            path = await self._make(name, address, link)
        except KitError:
            await self.detach(name, link)
            raise
        if self.attached is not None:
            await self.attached(path)
        self.by_address[address] = path
        self.by_owner[owner] = address
        return path

    async def _make(self, name: str, address: str, link: str) -> Path:
        await _batch(
            f"netns add {_PREFIX}{name}",
            f"link add {link} type veth peer name eth0 netns {_PREFIX}{name}",
            f"link set {link} address {_GATEWAY_MAC} up",
            f"route add {address} dev {link}",
            f"neighbour add {address} lladdr {_MAC} dev {link} nud permanent",
        )
        await _batch(
            "link set lo up",
            f"link set eth0 address {_MAC} up",
            f"addr add {address}/32 dev eth0",
            f"route add {self._gateway} dev eth0",
            f"route add default via {self._gateway}",
            f"neighbour add {self._gateway} lladdr {_GATEWAY_MAC} dev eth0 nud permanent",
            namespace=f"{_PREFIX}{name}",
        )
        return NAMESPACES / f"{_PREFIX}{name}"

    async def attach_node(self, node: str, address: str) -> Path:
        """Give the namespace that stands for a node's own network, made for the node's first host-network pod."""
        attachment = self._node_networks.get(node)
        if attachment is None or (attachment.done() and attachment.exception()):
            link = f"vethn{address.rpartition('.')[2]}"
            self._node_networks[node] = asyncio.create_task(self.attach(f"node-{node}", address, link))
        return await asyncio.shield(self._node_networks[node])

    async def detach(self, name: str, link: str) -> None:
        """Remove the namespace and its link; not an error when there is none."""
        removed = NAMESPACES / f"{_PREFIX}{name}"
        self.by_address = {address: path for address, path in self.by_address.items() if path != removed}
        self.by_owner = {owner: address for owner, address in self.by_owner.items() if address in self.by_address}
        await run(["ip", "link", "delete", link])
        if (NAMESPACES / f"{_PREFIX}{name}").exists():
            await run(["ip", "netns", "delete", f"{_PREFIX}{name}"])

    async def sweep(self) -> None:
        """Remove what an agent that died has left: its processes died with it, their namespaces didn't."""
        output = await run_checked(["ip", "netns", "list"])
        names = [line.split()[0] for line in output.splitlines() if line.startswith(_PREFIX)]
        if names:
            await _batch(*(f"netns delete {name}" for name in names))


async def route_services(services: IPv4Network) -> None:
    """Make every Service address one of this machine's own, so that the proxy can listen on any of them."""
    await run_checked(["ip", "route", "replace", "local", str(services), "dev", "lo"])


async def _batch(*commands: str, namespace: str | None = None) -> None:
    namespace_options: Iterable[str] = ["-n", namespace] if namespace else []
    await run_checked(["ip", *namespace_options, "-batch", "-"], stdin="".join(f"{command}\n" for command in commands))


_CLONE_NEWNET = 0x40000000


def bound_socket(host: str, port: int, network_namespace: str | None) -> socket.socket:
    """A TCP socket that is bound, but doesn't listen, in that network namespace (a path; None: the process's own).

    Raises:
        OSError: the namespace can't be entered, or the address is taken.
    """

    def make() -> socket.socket:
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
        return bound

    return in_namespace(make, network_namespace)


def in_namespace(make: Callable[[], socket.socket], network_namespace: str | None) -> socket.socket:
    """A socket of that network namespace (a path; None: the process's own), which it belongs to for good.

    Raises:
        OSError: the namespace can't be entered, or the socket can't be made.
    """
    if network_namespace is None:
        return make()

    def enter_and_make() -> socket.socket:
        descriptor = os.open(network_namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), network_namespace)
        finally:
            os.close(descriptor)
        return make()

    # A network namespace belongs to a thread: this one's ends with it.
    with ThreadPoolExecutor(1, "network-namespace") as thread:
        return thread.submit(enter_and_make).result()


def network_of(network_namespace: str | None) -> str | None:
    """Identity of a network namespace: device and inode of its file."""
    if network_namespace is None:
        return None
    status = Path(network_namespace).stat()
    return f"{status.st_dev}:{status.st_ino}"
