"""Sockets inside a pod's network namespace."""

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNET = 0x40000000


def bind(host: str, port: int, network_namespace: str | None) -> socket.socket:
    """A TCP socket that is bound, but doesn't listen, in that network namespace (a path; None: the process's own).

    Raises:
        OSError: the namespace can't be entered, or the address is taken.
    """
    return inside(lambda: _bound(host, port), network_namespace)


def inside(make: Callable[[], socket.socket], network_namespace: str | None) -> socket.socket:
    """A socket of that network namespace (a path; None: the process's own), which it belongs to for good.

    Raises:
        OSError: the namespace can't be entered, or the socket can't be made.
    """
    if network_namespace is None:
        return make()
    return _in_thread(lambda: _made_inside(make, network_namespace))


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _made_inside(make: Callable[[], socket.socket], network_namespace: str) -> socket.socket:
    """Enter a namespace for good; only for a thread that ends after it."""
    descriptor = os.open(network_namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), network_namespace)
    finally:
        os.close(descriptor)
    return make()


def _in_thread(make: Callable[[], socket.socket]) -> socket.socket:
    """Run in a thread of its own: a network namespace belongs to a thread, and this one's ends with it."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def run() -> None:
        try:
            made.append(make())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="network-namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def network_of(network_namespace: str | None) -> str | None:
    """What tells one network namespace from another: device and inode of its file."""
    if network_namespace is None:
        return None
    status = Path(network_namespace).stat()
    return f"{status.st_dev}:{status.st_ino}"
