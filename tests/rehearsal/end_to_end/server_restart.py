"""Kill the prefill servers of a rehearsed model, one after the other; each time as many are ready as before.

Run inside a rehearsal: server_restart.py container|pod SIMULATOR. Prints how often containers restarted, by role.
"""

import json
import sys
import urllib.request
from collections import Counter

from lightkube import Client
from lightkube.resources.core_v1 import Pod

NAMESPACE, ROLE = "llm-d", "llm-d.ai/role"
PROMPT = {"model": "openai/gpt-oss-120b", "prompt": "All happy families are alike. " * 100, "max_tokens": 1}


def servers(client: Client, role: str | None = None) -> list[Pod]:
    return list(client.list(Pod, namespace=NAMESPACE, labels={ROLE: role}))


def introduce(client: Client) -> None:
    """Have each decode server fetch KV cache from each prefill server."""
    for decode in servers(client, "decode"):
        for prefill in servers(client, "prefill"):
            headers = {"content-type": "application/json", "x-prefiller-host-port": f"{prefill.status.podIP}:8000"}
            url = f"http://{decode.status.podIP}:8000/v1/completions"
            request = urllib.request.Request(url, json.dumps(PROMPT).encode(), headers)
            urllib.request.urlopen(request).read()  # noqa: S310


def is_ready(pod: Pod) -> bool:
    return any(item.type == "Ready" and item.status == "True" for item in pod.status.conditions or ())


def restarts(pods: list[Pod]) -> Counter[str]:
    """Return the number of restarts of containers by role."""
    counted: Counter[str] = Counter()
    for pod in pods:
        counted[pod.metadata.labels[ROLE]] += sum(item.restartCount for item in pod.status.containerStatuses)
    return counted


def kill(client: Client, pod: Pod, how: str, simulator: str) -> None:
    if how == "pod":
        client.delete(Pod, pod.metadata.name, namespace=NAMESPACE, grace_period=0)
        return
    (status,) = pod.status.containerStatuses
    server = status.containerID.removeprefix("simulator://")
    urllib.request.urlopen(urllib.request.Request(f"{simulator}/servers/{server}/kill", method="POST"))  # noqa: S310


def wait(client: Client, killed: Pod, names: set[str], version: str) -> None:
    """Wait until a server is gone and as many are ready as have these names."""
    ready, removed = set(names), False
    for event, pod in client.watch(Pod, namespace=NAMESPACE, labels={ROLE: None}, resource_version=version):
        if event != "DELETED" and pod.metadata.deletionTimestamp is None and is_ready(pod):
            ready.add(pod.metadata.name)
        else:
            ready.discard(pod.metadata.name)
        removed = removed or killed.metadata.name not in ready
        if removed and len(ready) == len(names):
            return


def main(how: str, simulator: str) -> None:
    client = Client()
    introduce(client)
    before = restarts(servers(client))
    for item in servers(client, "prefill"):
        names = {pod.metadata.name for pod in servers(client) if is_ready(pod)}
        pod = client.get(Pod, item.metadata.name, namespace=NAMESPACE)
        kill(client, pod, how, simulator)
        wait(client, pod, names, pod.metadata.resourceVersion)
    print(json.dumps(restarts(servers(client)) - before))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
