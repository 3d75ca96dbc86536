"""Users of LoRA adapters, each again as soon as it is answered, through the front door.

Run inside a rehearsal's cluster: adapter_load.py ADDRESS CASES, where CASES has the adapters of each model as JSON.
Prints as JSON, for each model, what became of the requests, how long they took, and how often the servers had the
adapter.
"""

import http.client
import json
import sys
import threading
import time
import urllib.request
from collections import Counter
from statistics import mean
from typing import Any
from urllib.parse import urlsplit

from lightkube import Client
from lightkube.resources.core_v1 import Pod

USERS_PER_ADAPTER, REQUESTS, TOKENS, LIMIT_S = 2, 24, 64, 120
COUNTERS = ("adapter_requests", "adapter_loads")


class Users:
    """Users of one model's adapters; each asks for one adapter alone."""

    def __init__(self, address: str, adapters: list[str]) -> None:
        self.address, self.adapters = urlsplit(address).netloc, adapters
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []

    def ask(self, adapter: str, user: int) -> None:
        for count in range(REQUESTS):
            prompt = f"{adapter} {user} {count} " * 20
            body = json.dumps({"model": adapter, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True})
            connection = http.client.HTTPConnection(self.address, timeout=LIMIT_S)
            begun_s = time.monotonic()
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            connection.close()
            self.statuses[answer.status] += 1
            self.seconds.append(time.monotonic() - begun_s)

    def run(self) -> None:
        users = [(adapter, user) for user in range(USERS_PER_ADAPTER) for adapter in self.adapters]
        threads = [threading.Thread(target=self.ask, args=user) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def counted(model: str) -> list[dict[str, int]]:
    """Return what each of a model's servers has counted."""
    selected = {"llm-d.ai/role": None, "llmd-oke/model": model.replace(".", "-")}
    pods = Client().list(Pod, namespace="llm-d", labels=selected)
    servers: list[dict[str, int]] = []
    for pod in pods:
        text = urllib.request.urlopen(f"http://{pod.status.podIP}:8000/metrics", timeout=30).read().decode()
        found = {line.partition("{")[0]: line.rpartition(" ")[2] for line in text.splitlines()}
        servers.append({name: int(float(found[f"llmd_oke_simulator_{name}_total"])) for name in COUNTERS})
    return servers


def main(address: str, cases: dict[str, list[str]]) -> None:
    seen: dict[str, Any] = {}
    for model, adapters in cases.items():
        users = Users(address, adapters)
        users.run()
        servers = counted(model)
        requests, loads = (sum(server[name] for server in servers) for name in COUNTERS)
        seen[model] = {
            "statuses": dict(users.statuses),
            "mean_s": round(mean(users.seconds), 3),
            "requests": requests,
            "hits": round(1 - loads / requests, 3),
            "servers": servers,
        }
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
