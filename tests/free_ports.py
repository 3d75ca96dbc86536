"""Ports of loopback for servers that tests start."""

import contextlib
import itertools
import os
import socket

_FIRST, _OF_A_WORKER, _WORKERS = 12_000, 1_000, 16
"""All below the ports that Linux gives out by itself (from 32768 on), and those of NodePorts (from 30000 on)."""

_offsets = itertools.count(os.getpid())


def free_port() -> int:
    """Return a port that nobody listens at, and that isn't given to another socket before the test's server takes it.

    A process gets another port each time; the workers of a run have different ones.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    while True:
        port = _FIRST + worker * _OF_A_WORKER + next(_offsets) % _OF_A_WORKER
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
