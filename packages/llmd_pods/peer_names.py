"""Program that waits until the names of all pods of a unit are known, each to one address.
Runs in a pod, with nothing but Python itself.

It ends with 0 when they have been for long enough; with 1 and the cause when the time is up, or the pod is none of
them.
"""

import argparse
import socket
import sys
import time
from collections.abc import Callable, Iterable

STEADY_S = 35.0
"""DNS servers of a cluster are several, each of which may remember for 30 s that a name was not there (CoreDNS)."""

PAUSE_S = 5.0


def main() -> int:
    """Wait as the arguments say; return the exit code."""
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
    """Wait until each name has had one address for `STEADY_S`, one of which is the pod's `own`; return what is wrong
    where that isn't so after `limit_s` seconds, else an empty text.
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
    """Return the IPv4 addresses of a name; none where it isn't known."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)}
    except OSError:
        return set()


if __name__ == "__main__":
    sys.exit(main())
