"""Network namespaces of pods, each with an IP address of its own, one hop from all others, and sockets inside them.

Each pod has a veth link to the local cluster's namespace, which forwards; neighbours are one permanent entry at each
end. With pods on a bridge, each pair of communicating pods would use two entries of the kernel's neighbour table, which
holds 1,024 for all namespaces (`net.ipv4.neigh.default.gc_thresh3`), and a bridge has 1,024 ports.
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
"""MAC addresses of the two ends of each veth link."""

_NODES_PREFIX, _PODS_PREFIX = 22, 25
"""Prefix lengths of the network of all nodes, and of the network of one node's pods, of which OKE permits at most
110.
"""


class AddressPool:
    """Pool of pod IP addresses: the node with index n (from 0) has the (n+1)th /25 after the nodes' own network."""

    def __init__(self, pod_network: IPv4Interface) -> None:
        self._base = node_network(pod_network).broadcast_address + 1
        self._used: set[str] = set()

    def take(self, node_index: int, preferred: str | None = None) -> str:
        """Return an unused IP address of a node's range of pod addresses, `preferred` if that is unused.

        Raises:
            KitError: all addresses of the node are in use.
        """
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
        """Return a pod's IP address to the pool."""
        self._used.discard(address)


def node_network(pod_network: IPv4Interface) -> IPv4Network:
    """Return the network of the nodes' and the local cluster's own addresses: the first /22 of the pod network."""
    return IPv4Network((pod_network.network.network_address, _NODES_PREFIX))


class Networks:
    """Network namespaces of pods, created and deleted with `ip`; callers choose short names."""

    def __init__(self, pod_network: IPv4Interface) -> None:
        self._gateway = pod_network.ip
        self._node_networks: dict[str, asyncio.Task[Path]] = {}
        self.by_address: dict[str, Path] = {}
        """Paths of pods' network namespaces by IP address."""
        self.by_owner: dict[str, str] = {}
        """IP addresses of pods by uid, known before the pods' statuses have them."""
        self.attached: Callable[[Path], Awaitable[None]] | None = None
        """Function that is awaited for each new namespace, before it is in `by_address` and before a process runs in
        it.
        """

    async def attach(self, name: str, address: str, link: str, owner: str = "") -> Path:
        """Create the network namespace `name` with `address` on its eth0, whose peer is `link`, for the pod with the
        uid `owner`; return its path.

        Raises:
            KitError: a step failed; the namespace was deleted again.
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
        """Return the network namespace that stands for a node's own network, created for the node's first host-network
        pod.
        """
        attachment = self._node_networks.get(node)
        if attachment is None or (attachment.done() and attachment.exception()):
            link = f"vethn{address.rpartition('.')[2]}"
            self._node_networks[node] = asyncio.create_task(self.attach(f"node-{node}", address, link))
        return await asyncio.shield(self._node_networks[node])

    async def detach(self, name: str, link: str) -> None:
        """Delete a pod's network namespace and its link; do nothing if they don't exist."""
        removed = NAMESPACES / f"{_PREFIX}{name}"
        self.by_address = {address: path for address, path in self.by_address.items() if path != removed}
        self.by_owner = {owner: address for owner, address in self.by_owner.items() if address in self.by_address}
        await run(["ip", "link", "delete", link])
        if (NAMESPACES / f"{_PREFIX}{name}").exists():
            await run(["ip", "netns", "delete", f"{_PREFIX}{name}"])

    async def sweep(self) -> None:
        """Delete the network namespaces that a killed agent left behind; its processes ended with it."""
        output = await run_checked(["ip", "netns", "list"])
        names = [line.split()[0] for line in output.splitlines() if line.startswith(_PREFIX)]
        if names:
            await _batch(*(f"netns delete {name}" for name in names))


async def _batch(*commands: str, namespace: str | None = None) -> None:
    namespace_options: Iterable[str] = ["-n", namespace] if namespace else []
    await run_checked(["ip", *namespace_options, "-batch", "-"], stdin="".join(f"{command}\n" for command in commands))


_CLONE_NEWNET = 0x40000000


def bound_socket(host: str, port: int, network_namespace: str | None) -> socket.socket:
    """Return a TCP socket that is bound, but doesn't listen yet, in the network namespace at this path (None: the
    process's own).

    Raises:
        OSError: the namespace can't be entered, or the address is in use.
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
    """Return a socket created in the network namespace at this path (None: the process's own); it stays in that
    namespace.

    Raises:
        OSError: the namespace can't be entered, or the socket can't be created.
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

    # setns changes the namespace of one thread, which is used for nothing else.
    with ThreadPoolExecutor(1, "network-namespace") as thread:
        return thread.submit(enter_and_make).result()


def network_of(network_namespace: str | None) -> str | None:
    """Return an identifier of the network namespace at this path: device and inode number of its file; None for
    None.
    """
    if network_namespace is None:
        return None
    status = Path(network_namespace).stat()
    return f"{status.st_dev}:{status.st_ino}"
