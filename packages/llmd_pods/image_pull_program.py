"""Program that waits until nodes have pulled an image. It runs in a pod and needs only the standard library.

It doesn't wait for absent or unresponsive nodes, nor beyond its time limit, since servers can still pull the image
themselves. The exit code is 0; 1 with the cause if the time limit is over and no node has the image.
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
QUIET_S = 30.0
"""Seconds without a pull in progress after which nodes without the image are given up."""

Pods = list[dict[str, Any]]


def main() -> int:
    """Wait until the nodes of the pods that the arguments select have pulled the image; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--selector", required=True)
    parser.add_argument("--nodes", required=True, type=int)
    parser.add_argument("--limit-s", required=True, type=float)
    parser.add_argument("--pause-s", default=2.0, type=float)
    arguments = parser.parse_args()
    node_count, text = wait(arguments, lambda: list_pods(arguments.selector))
    print(text, flush=True)
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(text[:4000])
    return 0 if node_count else 1


def wait(arguments: argparse.Namespace, source: Callable[[], Pods]) -> tuple[int, str]:
    """Wait until nodes have pulled the image or the time limit is over; return the number of nodes that have it, and a
    description of all nodes.
    """
    start_s = quiet_since_s = time.monotonic()
    last_text = ""
    node_count = 0
    while True:
        try:
            node_count, pulls = judge(source())
        except (OSError, http.client.HTTPException, ValueError) as error:
            pulls = [f"the API server does not answer: {error}"]
        now_s = time.monotonic()
        if pulls:
            quiet_since_s = now_s
        text = "; ".join([f"{node_count} of {arguments.nodes} nodes have the image", *pulls])
        if node_count >= arguments.nodes and not pulls:
            return node_count, text
        if node_count and now_s - quiet_since_s >= QUIET_S:
            return node_count, f"{text}; the others are not there"
        if now_s - start_s >= arguments.limit_s:
            return node_count, f"{text}; not waited for after {arguments.limit_s:.0f} s"
        if text != last_text:
            print(text, flush=True)
            last_text = text
        time.sleep(arguments.pause_s)


def judge(pods: Pods) -> tuple[int, list[str]]:
    """Return the number of nodes that have the image, and descriptions of the pulls in progress. A pod without
    `startTime` is ignored: its node doesn't respond.
    """
    node_count, pulls = 0, list[str]()
    for pod in sorted(pods, key=lambda pod: pod["metadata"]["name"]):
        status, node = pod.get("status", {}), pod.get("spec", {}).get("nodeName", "a node")
        containers: list[dict[str, Any]] = status.get("containerStatuses") or []
        states: list[dict[str, dict[str, str]]] = [container.get("state", {}) for container in containers]
        if any("running" in state or "terminated" in state for state in states):
            node_count += 1
        elif status.get("startTime"):
            wait_state = next((state["waiting"] for state in states if "waiting" in state), dict[str, str]())
            reason, message = wait_state.get("reason", ""), wait_state.get("message", "")
            failure = f" ({reason}: {message})" if reason in {"ErrImagePull", "ImagePullBackOff"} else ""
            pulls.append(f"{node} pulls it{failure}")
    return node_count, pulls


def list_pods(selector: str) -> Pods:
    """Return the pods of this namespace that match a label selector."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    namespace, token = (ACCOUNT / "namespace").read_text(), (ACCOUNT / "token").read_text()
    url = f"https://{host}:{port}/api/v1/namespaces/{namespace}/pods?labelSelector={urllib.parse.quote(selector)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=context) as answer:  # noqa: S310 - https
        return json.load(answer)["items"]


if __name__ == "__main__":
    sys.exit(main())
