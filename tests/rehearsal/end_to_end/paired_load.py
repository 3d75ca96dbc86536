"""A load on decode servers that prefill servers follow too, and one that is nearly nothing while servers go again.

Run inside a rehearsal's cluster: paired_load.py ADDRESS. Prints the servers of both roles after each, and failures.
"""

import json
import sys
import time

from lightkube import Client
from lightkube.resources.apps_v1 import Deployment
from scaled_load import NAMESPACE, Load

ROLE = "llm-d.ai/role"
LIMIT_S = 120


def servers(client: Client) -> dict[str, int]:
    """Return how many are asked for, by role."""
    deployments = [
        item for item in client.list(Deployment, namespace=NAMESPACE) if ROLE in (item.metadata.labels or {})
    ]
    return {item.metadata.labels[ROLE]: item.spec.replicas for item in deployments}


def until(client: Client, wanted: dict[str, int]) -> dict[str, int]:
    end_s = time.monotonic() + LIMIT_S
    while (now := servers(client)) != wanted and time.monotonic() < end_s:
        time.sleep(0.5)
    return now


def main(address: str) -> None:
    client = Client()
    with Load(address) as load:
        grown = until(client, {"prefill": 4, "decode": 2})
    light = Load(address)
    light.users = light.users[:1]
    with light:
        shrunk = until(client, {"prefill": 2, "decode": 1})
        time.sleep(5)  # as long as the last ones drain
    print(json.dumps({"grown": grown, "shrunk": shrunk, "failures": load.failures + light.failures}))


if __name__ == "__main__":
    main(sys.argv[1])
