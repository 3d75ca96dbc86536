"""Whether something listens at an address, as far as this machine can reach it."""

import socket

CONNECT_TIMEOUT_S = 1.0


def is_reachable(host: str, port: int) -> bool:
    """Whether a TCP connection comes about within a second."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
