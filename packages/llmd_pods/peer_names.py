"""Program that waits until DNS resolves the names of all pods of a prefill and a decode server that span nodes, each to
one address. Runs in a pod, with nothing but Python itself.

The exit code is 0 once all names have been resolved for long enough; 1 with the cause if the time limit is over, or if
none of the addresses is the pod's own.
"""

import argparse
import socket
import sys
import time
from collections.abc import Callable, Iterable

STEADY_S = 35.0
"""Seconds for which all names must resolve: a cluster has several DNS servers, each of which may remember for 30 s that
a name did not exist (CoreDNS).
"""

PAUSE_S = 5.0


def main() -> int:
    """Wait until DNS resolves the pod names in the arguments; return 0, or 1 after the time limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit-s", required=True, type=float)
    parser.add_argument("--own", required=True)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    problem = wait(arguments.names, arguments.own, arguments.limit_s)
    if problem:
        print(problem, file=sys.stderr)
    return 1 if problem else 0


def wait(
    names: Iterable[str],
    own: str,
    limit_s: float,
    look_up: Callable[[str], "set[str]"] | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until DNS has resolved each name to one address for `STEADY_S` seconds, and one of these is the pod's `own`
    address; return an empty text, or what is wrong after `limit_s` seconds.
    """
    find = addresses if look_up is None else look_up
    known, began, steady_since = list(names), clock(), None
    while True:
        found = {name: find(name) for name in known}
        missing = [name for name, of_name in found.items() if len(of_name) != 1]
        now = clock()
        steady_since = None if missing else now if steady_since is None else steady_since
        if steady_since is not None and now - steady_since >= STEADY_S:
            among = {own} <= set().union(*found.values())
            return "" if among else f"{own}, the pod's own address, is none of {' '.join(known)}"
        if now - began >= limit_s:
            return f"after {limit_s:.0f} s without one steady address: {' '.join(missing or known)}"
        pause(PAUSE_S)


def addresses(name: str) -> "set[str]":
    """Return the IPv4 addresses to which DNS resolves a name; empty if the name isn't known."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)}
    except OSError:
        return set()


if __name__ == "__main__":
    sys.exit(main())
