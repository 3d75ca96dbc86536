"""A load that comes and goes on a model whose servers follow it, and a Prometheus that stops answering meanwhile.

Run inside a rehearsal's cluster: scaled_load.py grow ADDRESS PROMETHEUS_PID | scaled_load.py shrink PROMETHEUS_PID
Prints what it saw as JSON. `grow` leaves a Prometheus behind that hangs, `shrink` lets it go on.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.autoscaling_v2 import HorizontalPodAutoscaler

NAMESPACE = "llm-d"
USERS, OUTPUT_TOKENS = 12, 400
LIMIT_S = 90
HUNG_S = 12
"""Longer than what servers that have too little to do stay, with a second for KEDA's own limit of 3 s."""

ScaledObject = create_namespaced_resource("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects")


class Load:
    """Users who each ask again as soon as they have their answer."""

    def __init__(self, address: str) -> None:
        self.address, self.ended, self.failures = address, threading.Event(), 0
        self.users = [threading.Thread(target=self.ask, args=(number,), daemon=True) for number in range(USERS)]

    def ask(self, user: int) -> None:
        count = 0
        while not self.ended.is_set():
            count += 1
            prompt = f"{user} {count} " * 100
            body = {"model": "openai/gpt-oss-120b", "prompt": prompt, "max_tokens": OUTPUT_TOKENS}
            headers = {"content-type": "application/json"}
            url = f"{self.address}/v1/completions"
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
            try:
                urllib.request.urlopen(request, timeout=LIMIT_S).read()  # noqa: S310
            except OSError:
                self.failures += 1
                time.sleep(0.5)

    def __enter__(self) -> "Load":
        for user in self.users:
            user.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for user in self.users:
            user.join(LIMIT_S)


class Cluster:
    """The decode servers and what scales them."""

    def __init__(self) -> None:
        self.client, self.started_s = Client(), time.monotonic()
        self.name = next(item.metadata.name for item in self.client.list(ScaledObject, namespace=NAMESPACE))
        self.timeline: list[tuple[float, int]] = []

    def servers(self) -> int:
        deployment = self.client.get(Deployment, self.name, namespace=NAMESPACE)
        wanted = deployment.spec.replicas
        if not self.timeline or self.timeline[-1][1] != wanted:
            self.timeline.append((round(time.monotonic() - self.started_s, 1), wanted))
        return deployment.status.readyReplicas or 0 if deployment.status.replicas == wanted else -1

    def hpa(self) -> dict[str, str]:
        found = self.client.get(HorizontalPodAutoscaler, f"keda-hpa-{self.name}", namespace=NAMESPACE)
        return {item.type: item.status for item in found.status.conditions or ()}

    def scaled_object(self) -> dict[str, str]:
        status = self.client.get(ScaledObject, self.name, namespace=NAMESPACE).to_dict()["status"]
        return {item["type"]: item["status"] for item in status["conditions"]}

    def follows(self) -> bool:
        """Tell whether both who scale have read what there is to follow."""
        return self.hpa().get("ScalingActive") == "True" and self.scaled_object().get("Ready") == "True"

    def until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        end_s = time.monotonic() + limit_s
        while not (result := condition()) and time.monotonic() < end_s:
            time.sleep(0.3)
        return result

    def told(self) -> dict[str, Any]:
        return {"hpa": self.hpa(), "scaled_object": self.scaled_object(), "servers": self.servers()}


def memory_mb() -> dict[str, float]:
    """Return the memory of KEDA's programs, in MB."""
    sizes: dict[str, float] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program = (process / "cmdline").read_bytes().split(b"\0")[0].decode()
            lines = (process / "status").read_text().splitlines()
        except OSError:
            continue
        if program in {"/keda", "/keda-adapter"}:
            sizes[program] = next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))
    return sizes


def grow(address: str, prometheus: int) -> dict[str, Any]:
    cluster = Cluster()
    before = {"active": cluster.until(cluster.follows), **cluster.told()}
    with Load(address) as load:
        cluster.until(lambda: cluster.servers() >= 2)
        loaded = {**cluster.told(), "failures": load.failures, "memory_mb": memory_mb()}
        os.kill(prometheus, signal.SIGSTOP)
    cluster.until(lambda: cluster.hpa().get("ScalingActive") == "False")
    # KEDA 2.20 says so at each look at its triggers, and takes it back when it looks at the object itself.
    unready = cluster.until(lambda: cluster.scaled_object().get("Ready") == "False")
    cluster.until(lambda: cluster.servers() == 1, HUNG_S)
    hung = {**cluster.told(), "unready": unready}
    return {"before": before, "loaded": loaded, "hung": hung, "timeline": cluster.timeline}


def shrink(prometheus: int) -> dict[str, Any]:
    cluster = Cluster()
    os.kill(prometheus, signal.SIGCONT)
    cluster.until(lambda: cluster.servers() == 1)
    cluster.until(lambda: cluster.hpa().get("ScalingActive") == "True")
    return {"after": cluster.told(), "timeline": cluster.timeline}


if __name__ == "__main__":
    answer = grow(sys.argv[2], int(sys.argv[3])) if sys.argv[1] == "grow" else shrink(int(sys.argv[2]))
    print(json.dumps(answer))
