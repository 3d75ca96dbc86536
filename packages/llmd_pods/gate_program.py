"""Program that waits until enough nodes of a pool are Ready with all their devices available to pods. It runs in a pod
and needs only the standard library.

The exit code is 0 when they are; 1 after the time limit, with the cause for each node.
"""

import argparse
import http
import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TERMINATION_LOG = Path("/dev/termination-log")
REQUEST_TIMEOUT_S = 30.0

Nodes = list[dict[str, Any]]
Device = tuple[str, int]


def main() -> int:
    """Wait until as many nodes are Ready as the arguments say; return 0, or 1 after the time limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--selector", required=True)
    parser.add_argument("--nodes", required=True, type=int)
    parser.add_argument("--device", required=True, type=_device, action="append", dest="devices")
    parser.add_argument("--rdma-states")
    parser.add_argument("--timeout-s", required=True, type=float)
    parser.add_argument("--pause-s", default=5.0, type=float)
    arguments = parser.parse_args()
    problems = wait(arguments, lambda: list_nodes(arguments.selector), lambda: list_shared(arguments.rdma_states))
    if not problems:
        devices = " and ".join(f"{count} {resource}" for resource, count in arguments.devices)
        print(f"{arguments.nodes} nodes are Ready with {devices} each")
        return 0
    cause = f"after {arguments.timeout_s:.0f} s: " + "; ".join(problems)
    print(cause, file=sys.stderr)
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(cause[:4000])
    return 1


def wait(
    arguments: argparse.Namespace, source: Callable[[], Nodes], shared: Callable[[], Set[str]] = frozenset[str]
) -> list[str]:
    """Wait until enough nodes of the pool are Ready with all devices, or the time limit is over; return the problems of
    the last look, empty on success. `source` lists the nodes; `shared` returns the names of nodes whose RDMA devices
    are shared between network namespaces, so that no pod can have one exclusively.
    """
    deadline = time.monotonic() + arguments.timeout_s
    last_problems: list[str] = []
    while True:
        try:
            problems = judge(source(), arguments.nodes, arguments.devices, shared())
        except (OSError, http.client.HTTPException, ValueError) as error:
            problems = [f"the API server does not answer: {error}"]
        if not problems or time.monotonic() > deadline:
            return problems
        if problems != last_problems:
            print("; ".join(problems), flush=True)
            last_problems = problems
        time.sleep(arguments.pause_s)


def _device(text: str) -> Device:
    resource, _, count = text.rpartition("=")
    return resource, int(count)


def judge(nodes: Nodes, count: int, devices: Sequence[Device], shared: Set[str] = frozenset()) -> list[str]:
    """Return the problems if fewer than `count` nodes are Ready with all their devices, and no problems otherwise. A
    node in `shared` doesn't count, since no pod can have its RDMA devices exclusively.
    """
    problems = [f"{len(nodes)} of {count} nodes have joined"] if len(nodes) < count else []
    complete_nodes = 0
    for node in sorted(nodes, key=lambda node: node["metadata"]["name"]):
        name, status = node["metadata"]["name"], node.get("status", {})
        conditions: list[dict[str, str]] = status.get("conditions", [])
        ready = next((condition for condition in conditions if condition["type"] == "Ready"), dict[str, str]())
        allocatable: dict[str, str] = status.get("allocatable", {})
        quantities = [(int(allocatable.get(resource, 0)), need, resource) for resource, need in devices]
        shortages = [f"{quantity} of {need} {resource}" for quantity, need, resource in quantities if quantity < need]
        if ready.get("status") != "True":
            problems.append(f"{name} is not Ready ({ready.get('reason', 'no status')}: {ready.get('message', '')})")
        elif shortages:
            problems.append(f"{name} has {' and '.join(shortages)}")
        elif name in shared:
            problems.append(f"{name} shares its RDMA devices between network namespaces, so that no pod gets one")
        else:
            complete_nodes += 1
    return problems if complete_nodes < count else []


def list_nodes(selector: str) -> Nodes:
    """Return the nodes that match a label selector."""
    return _items(f"/api/v1/nodes?labelSelector={urllib.parse.quote(selector)}")


def list_shared(states: str | None) -> Set[str]:
    """Return the names of nodes whose RDMA devices are shared according to the SR-IOV operator's states at the API path
    `states`, each named after its node. Empty if `states` is None, if the operator isn't installed, or if its release
    doesn't report the mode.
    """
    try:
        items = _items(states) if states else []
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.NOT_FOUND:
            return frozenset()
        raise
    modes = {item["metadata"]["name"]: item.get("status", {}).get("system", {}).get("rdmaMode") for item in items}
    return {name for name, mode in modes.items() if mode == "shared"}


def _items(path: str) -> list[dict[str, Any]]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    url = f"https://{host}:{port}{path}"
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=context) as answer:  # noqa: S310 - https
        return json.load(answer)["items"]


if __name__ == "__main__":
    sys.exit(main())
