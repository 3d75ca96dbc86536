"""Program that waits until the servers of a DisaggregatedSet are those of the last update. It runs in a pod and needs
only the standard library.

The controller makes a LeaderWorkerSet for each role and revision, and writes no status of the DisaggregatedSet itself
(LWS 0.9.0, pkg/controllers/disaggregatedset). The exit code is 0; 1 with what is missing if the time limit is over.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TERMINATION_LOG = Path("/dev/termination-log")
REQUEST_TIMEOUT_S = 30.0
URL = "https://{}:{}/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets?labelSelector={}"
SET_LABEL = "disaggregatedset.x-k8s.io/name"
ROLE_LABEL = "disaggregatedset.x-k8s.io/role"
"""Labels that the controller sets on LeaderWorkerSets and on their pods."""
TEMPLATES_LABEL = "llmd-oke/templates"
"""Label of the pods of all roles; its value is a digest of the templates that the stack declares."""

Sets = list[dict[str, Any]]


def main() -> int:
    """Wait until the servers that the arguments describe are ready; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--templates", required=True)
    parser.add_argument("--servers", required=True, action="append", type=_servers)
    parser.add_argument("--limit-s", required=True, type=float)
    parser.add_argument("--pause-s", default=2.0, type=float)
    arguments = parser.parse_args()
    ready, text = wait(arguments, lambda: list_sets(arguments.name))
    print(text, flush=True)
    if TERMINATION_LOG.exists():
        TERMINATION_LOG.write_text(text[:4000])
    return 0 if ready else 1


def _servers(text: str) -> tuple[str, int]:
    role, _, count = text.partition("=")
    return role, int(count)


def wait(arguments: argparse.Namespace, source: Callable[[], Sets]) -> tuple[bool, str]:
    """Wait until all servers are ready or the time limit is over; return whether they are, and a sentence."""
    start_s = time.monotonic()
    servers: Mapping[str, int] = dict(arguments.servers)
    last_text = ""
    while True:
        try:
            missing = [*lacks(source(), arguments.templates, servers)]
        except (OSError, http.client.HTTPException, ValueError) as error:
            missing = [f"the API server does not answer: {error}"]
        if not missing:
            counts = " and ".join(f"{count} {role}" for role, count in servers.items())
            return True, f"{arguments.name}: {counts} servers are ready"
        text = f"{arguments.name}: {'; '.join(missing)}"
        if time.monotonic() - start_s >= arguments.limit_s:
            return False, f"{text}; not waited for after {arguments.limit_s:.0f} s"
        if text != last_text:
            print(text, flush=True)
            last_text = text
        time.sleep(arguments.pause_s)


def lacks(sets: Sets, templates: str, servers: Mapping[str, int]) -> Iterator[str]:
    """Yield what the controller has still to do: for each role the servers with these `templates` that aren't ready or
    are too many, and the sets of other templates that still have servers.
    """
    pods = [item["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"] for item in sets]
    new = [item for item, pod in zip(sets, pods, strict=True) if pod["labels"].get(TEMPLATES_LABEL) == templates]
    for role, count in servers.items():
        own = [item for item in new if item["metadata"]["labels"].get(ROLE_LABEL) == role]
        ready = sum(_count(item, "status", "readyReplicas") for item in own)
        if not own:
            yield f"no set of {role} servers of this update"
        elif (ready, sum(_count(item, "spec", "replicas") for item in own)) != (count, count):
            yield f"{ready} of {count} {role} servers are ready"
    for item in sets:
        left = max(_count(item, "spec", "replicas"), _count(item, "status", "replicas"))
        if item not in new and left:
            yield f"{item['metadata']['name']} of before still has {left}"


def _count(item: dict[str, Any], part: str, field: str) -> int:
    return item.get(part, {}).get(field) or 0


def list_sets(name: str) -> Sets:
    """Return the LeaderWorkerSets of this namespace that a DisaggregatedSet's controller has made."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    namespace, token = (ACCOUNT / "namespace").read_text(), (ACCOUNT / "token").read_text()
    url = URL.format(host, port, namespace, urllib.parse.quote(f"{SET_LABEL}={name}"))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - https
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=context) as answer:  # noqa: S310 - https
        return json.load(answer)["items"]


if __name__ == "__main__":
    sys.exit(main())
