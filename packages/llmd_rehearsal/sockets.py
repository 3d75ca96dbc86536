"""Sockets inside a pod's network namespace."""

import ctypes
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    """What tells one network namespace from another: device and inode of its file."""
    if network_namespace is None:
        return None
    status = Path(network_namespace).stat()
    return f"{status.st_dev}:{status.st_ino}"
