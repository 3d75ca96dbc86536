"""Waits until enough nodes of a pool are Ready with all their GPUs. Runs in a pod, with nothing but Python itself.

It ends with 0 when they are; with 1 and the cause, node by node, when the time is up.
"""

import argparse
import http.client
import json
import os
import ssl
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TERMINATION_LOG = Path("/dev/termination-log")
REQUEST_TIMEOUT_S = 30.0

Nodes = list[dict[str, Any]]


def main() -> int:
    """Waits as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--selector", required=True)
    parser.add_argument("--nodes", required=True, type=int)
    parser.add_argument("--resource", required=True)
    parser.add_argument("--gpus", required=True, type=int)
    parser.add_argument("--timeout-s", required=True, type=float)
    parser.add_argument("--pause-s", default=5.0, type=float)
    wanted = parser.parse_args()
    problems = wait(wanted, lambda: nodes(wanted.selector))
    if not problems:
        print(f"{wanted.nodes} nodes are Ready with {wanted.gpus} {wanted.resource} each")
        return 0
    cause = f"after {wanted.timeout_s:.0f} s: " + "; ".join(problems)
    print(cause, file=sys.stderr)
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(cause[:4000])
    return 1


def wait(wanted: argparse.Namespace, found: Callable[[], Nodes]) -> list[str]:
    """What is wrong when the time is up; nothing as soon as nothing is."""
    deadline = time.monotonic() + wanted.timeout_s
    said: list[str] = []
    while True:
        try:
            problems = judge(found(), wanted.nodes, wanted.resource, wanted.gpus)
        except (OSError, http.client.HTTPException, ValueError) as error:
            problems = [f"the API server does not answer: {error}"]
        if not problems or time.monotonic() > deadline:
            return problems
        if problems != said:
            print("; ".join(problems), flush=True)
            said = problems
        time.sleep(wanted.pause_s)


def judge(found: Nodes, count: int, resource: str, gpus: int) -> list[str]:
    """What keeps the nodes from being enough: fewer than `count` that are Ready with all their GPUs."""
    problems = [f"{len(found)} of {count} nodes have joined"] if len(found) < count else []
    whole = 0
    for node in sorted(found, key=lambda node: node["metadata"]["name"]):
        name, status = node["metadata"]["name"], node.get("status", {})
        conditions: list[dict[str, str]] = status.get("conditions", [])
        ready = next((condition for condition in conditions if condition["type"] == "Ready"), dict[str, str]())
        has = int(status.get("allocatable", {}).get(resource, 0))
        if ready.get("status") != "True":
            problems.append(f"{name} is not Ready ({ready.get('reason', 'no status')}: {ready.get('message', '')})")
        elif has < gpus:
            problems.append(f"{name} has {has} of {gpus} {resource}")
        else:
            whole += 1
    return problems if whole < count else []


def nodes(selector: str) -> Nodes:
    """The nodes that a label selects."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    url = f"https://{host}:{port}/api/v1/nodes?labelSelector={urllib.parse.quote(selector)}"
    token = (ACCOUNT / "token").read_text()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=context) as answer:  # noqa: S310 - https
        return json.load(answer)["items"]


if __name__ == "__main__":
    sys.exit(main())
