"""Faults that make each alert fire and clear: those of a rehearsal, or those that promtool alone has.

Run inside a rehearsal (`alert_faults.py STACK FOLDER`), it plants the faults and prints which alerts fired and cleared.
"""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.models.autoscaling_v1 import ScaleSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod
from llmd_oke.operations.prometheus import alerts
from llmd_rehearsal.cluster_plan import OCI_FAULTS_FILE, SIMULATOR_URL
from llmd_rehearsal.oci_plugin.faults import NODE, Fault, FaultRule, write_rules
from llmd_rehearsal.prometheus_operator import PROMETHEUS_URL

REHEARSED: Mapping[str, str] = {
    "PrefillFallbackToDecodeOnly": "the prefill servers' Deployment is scaled to 0, and back",
    "KvTransferNotOverRdma": "transfers take 600 times as long, and as before",
    "KvTransferSlow": "transfers take 600 times as long, and as before",
    "KvTransferFailures": "decode servers are told to fetch from a server that is gone, until they aren't",
    "KvTransferExpired": "prompts are prefilled that no decode server fetches, until none are",
    "Preemptions": "more answers at a time than the KV cache of decode servers holds, until none come",
    "QueueAgainstSlo": "more requests at a time than decode servers run, until none come",
    "PrefillDecodeImbalance": "requests for decode servers alone, until none come",
    "GpuEccErrors": "a node's fault `memory-errors`, taken away",
    "GpuXgmiErrors": "a node's fault `xgmi-errors`, taken away",
    "GpuTooHot": "a node's fault `hot-gpu`, taken away",
    "RdmaLinkDown": "a node's fault `link-down`, taken away",
    "RdmaCongestion": "a node's fault `congestion`, taken away",
    "NodeFailsChecks": "a node's fault `dead-gpu`, taken away",
    "NodeFailedAcceptance": "`llmd-oke accept` of a node with the fault `dead-gpu`, and again without it",
    "DecodeRestartsAfterPrefill": "prefill servers are killed and decode servers crash over new ones, until none are",
    "CanaryAnswersDiffer": "all hand-overs damage what they carry, until none do",
    "CanaryStopped": "the canaries' Deployment is scaled to 0, and back",
    "CanarySlow": "transfers take 600 times as long, and as before",
    "CanaryHandsNothingOver": "the prefill servers' Deployment is edited, without its connector, and back",
    "CanaryFails": "the prefill servers' Deployment is edited, with another name of the model, and back",
    "StackNotScraped": "the router's Deployment is scaled to 0, and back",
}
"""By alert: the fault that makes it fire, and what clears it."""

BY_PROMTOOL: Mapping[str, str] = {
    "KvReleaseNotTold": "a notice gets lost between servers that both run: the simulated network loses none",
    "KvCacheStranded": "blocks that no lease frees: simulated servers have no such fault",
    "NodeChecksStopped": "a node's checks stop: simulated nodes look at themselves when they are asked",
    "CertificateExpires": "the rehearsed stack has no certificate: Envoys tell of none",
    "PickerWithoutLeader": "pickers of the release that is rehearsed (v0.7.1) have no leader",
}
"""By alert: why no fault of the rehearsal can."""

NAMESPACE, MODEL = "llm-d", "openai/gpt-oss-120b"
ADDRESS = "http://gpt-oss-120b.llm-d.svc.cluster.local/v1/completions"
PREFILL_PORT, DECODE_PORT = 8000, 8200
NODE_FAULTS = (
    Fault.DEAD_GPU,
    *(Fault.MEMORY_ERRORS, Fault.XGMI_ERRORS, Fault.HOT_GPU, Fault.LINK_DOWN, Fault.CONGESTION),
)
NODES = len(NODE_FAULTS) + 4
"""One with each fault, and one for each server."""
SOUND_S = 18
"""Longer than the longest time that an alert must hold, as it is in a rehearsal."""

CHANGE_LIMIT_S = 180
HANDSHAKES_S = 30
"""The first transfers between servers wait for these, which counts as time in the queue: each decode server and each
prefill server once, about ten seconds each time, and a decode server's one after the other.
"""

REQUEST_LIMIT_S = 30
REMOTE = {"remote_engine_id": "gone", "remote_request_id": "x", "remote_block_ids": [0], "remote_host": "10.0.0.1"}


@dataclass(frozen=True)
class Plant:
    """A fault: the alerts that it is for, what plants it, and what takes it away."""

    alerts: tuple[str, ...]
    begin: Callable[[], object]
    end: Callable[[], object]


def post(url: str, body: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None) -> None:
    """Send a request; what becomes of it doesn't matter."""
    own = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), own)  # noqa: S310
    with suppress(OSError):
        urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S).read()  # noqa: S310


class Repeated:
    """Something that several threads do again and again, with its number, until it ends."""

    def __init__(self, action: Callable[[int], object], *, threads: int = 1, pause_s: float = 0.5) -> None:
        self.action, self.threads, self.pause_s = action, threads, pause_s
        self.ended = threading.Event()

    def begin(self) -> None:
        for thread in range(self.threads):
            threading.Thread(target=self._repeat, args=(thread,), daemon=True).start()

    def _repeat(self, thread: int) -> None:
        number = thread
        while not self.ended.is_set():
            self.action(number)
            number += self.threads
            self.ended.wait(self.pause_s)

    def end(self) -> None:
        self.ended.set()


def completion(prompt: str, tokens: int, **more: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}


def without_connector(arguments: list[str]) -> list[str]:
    return [argument for argument in arguments if not argument.startswith("--kv-transfer-config")]


def with_another_name(arguments: list[str]) -> list[str]:
    return [*arguments, "--served-model-name=another"]


class Stack:
    """The rehearsed stack, and what can be done to it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.faults = name, folder / OCI_FAULTS_FILE
        self.client: Client = Client(namespace=NAMESPACE)
        self.one_reader = threading.Lock()
        self.decoding = self.addresses("decode")
        self.arguments = dict[str, list[str]]()

    def pods(self, role: str) -> list[Pod]:
        """One thread at a time: what lightkube reads objects with ends a process where several meet a type first."""
        with self.one_reader:
            return list(self.client.list(Pod, labels={"llm-d.ai/role": role}))

    def addresses(self, role: str) -> list[str]:
        return [pod.status.podIP for pod in self.pods(role) if pod.status and pod.status.podIP]

    def scale(self, suffix: str, replicas: int) -> None:
        with self.one_reader:
            for deployment in self.client.list(Deployment):
                name = (deployment.metadata and deployment.metadata.name) or ""
                if name.endswith(suffix):
                    meta = ObjectMeta(name=name, namespace=NAMESPACE)
                    self.client.replace(Deployment.Scale(metadata=meta, spec=ScaleSpec(replicas)), name)

    def change_prefill(self, change: Callable[[list[str]], list[str]]) -> None:
        """Give prefill servers other arguments, and keep those that they had."""
        with self.one_reader:
            for deployment in self.client.list(Deployment):
                name = (deployment.metadata and deployment.metadata.name) or ""
                if name.endswith("-prefill"):
                    containers = deployment.spec.template.spec.containers  # pyright: ignore[reportOptionalMemberAccess]
                    self.arguments.setdefault(name, next(one.args or [] for one in containers if one.name == "vllm"))
                    own = {"name": "vllm", "args": change(self.arguments[name])}
                    spec = {"template": {"spec": {"containers": [own]}}}
                    self.client.patch(Deployment, name, {"spec": spec})

    def restore_prefill(self) -> None:
        self.change_prefill(list)

    def plant_nodes(self, faults: Mapping[str, Fault]) -> None:
        rules = [FaultRule(resource=NODE, name=node, operation="*", fault=fault) for node, fault in faults.items()]
        write_rules(self.faults, rules)

    def accept(self, node: str) -> None:
        subprocess.run(["llmd-oke", "accept", "-s", self.name, "--node", node], check=False, capture_output=True)

    def load(self, number: int) -> None:
        post(ADDRESS, completion(f"{number} {time.monotonic()} " * 300, 16))

    def overload(self, number: int) -> None:
        address = self.decoding[number % len(self.decoding)]
        prompt = f"{number:6} " * 400  # 700 tokens: 16 at a time fill the cache, and then grow
        post(f"http://{address}:{DECODE_PORT}/v1/completions", completion(prompt, 200 + 20 * (number % 10)))

    def fetch_from_nowhere(self, number: int) -> None:
        transfer = {"do_remote_prefill": True, "do_remote_decode": False, "remote_port": 5600, **REMOTE}
        for address in self.addresses("decode"):
            body = completion(f"{number} " * 300, 1, kv_transfer_params=transfer)
            post(f"http://{address}:{DECODE_PORT}/v1/completions", body)

    def prefill_for_nobody(self, number: int) -> None:
        transfer = {"do_remote_decode": True, "do_remote_prefill": False}
        for address in self.addresses("prefill"):
            body = completion(f"{number} nobody " * 50, 1, kv_transfer_params=transfer)
            post(f"http://{address}:{PREFILL_PORT}/v1/completions", body)

    def kill_prefill(self, number: int) -> None:
        """Every decode server knows every prefill server; one of these goes."""
        for decode in self.addresses("decode"):
            for prefill in self.addresses("prefill"):
                headers = {"x-prefiller-host-port": f"{prefill}:{PREFILL_PORT}"}
                post(f"http://{decode}:8000/v1/completions", completion(f"{number} meet {prefill} " * 60, 1), headers)
        pod = self.pods("prefill")[0]
        if pod.status and pod.status.containerStatuses:
            server = (pod.status.containerStatuses[0].containerID or "").removeprefix("simulator://")
            post(f"{SIMULATOR_URL}/servers/{server}/kill")

    def groups(self) -> Iterator[list[Plant]]:
        """Faults that can be there together."""
        serving = {pod.spec.nodeName for role in ("prefill", "decode") for pod in self.pods(role) if pod.spec}
        free = [node for node in (f"mi300x-{number}" for number in range(NODES)) if node not in serving]
        nodes = dict(zip([free[-1], *free[:-1]], NODE_FAULTS, strict=False))
        failing = free[-1]
        nowhere, nobody = Repeated(self.fetch_from_nowhere), Repeated(self.prefill_for_nobody, pause_s=1)
        slow, usual = (f"{SIMULATOR_URL}/transfers/slowdown/{times}" for times in (600, 1))
        devices = ("GpuEccErrors", "GpuXgmiErrors", "GpuTooHot", "RdmaLinkDown", "RdmaCongestion", "NodeFailsChecks")
        yield [
            Plant(("KvTransferNotOverRdma", "KvTransferSlow", "CanarySlow"), lambda: post(slow), lambda: post(usual)),
            Plant(("KvTransferFailures",), nowhere.begin, nowhere.end),
            Plant(("KvTransferExpired",), nobody.begin, nobody.end),
            Plant(devices, lambda: self.plant_nodes(nodes), lambda: self.plant_nodes({})),
            Plant(("NodeFailedAcceptance",), lambda: self.accept(failing), lambda: self.accept(failing)),
        ]
        much = Repeated(self.overload, threads=100, pause_s=0.0)
        yield [Plant(("Preemptions", "QueueAgainstSlo", "PrefillDecodeImbalance"), much.begin, much.end)]
        yield [
            Plant(
                ("PrefillFallbackToDecodeOnly",), lambda: self.scale("-prefill", 0), lambda: self.scale("-prefill", 2)
            )
        ]
        damaged, sound = (f"{SIMULATOR_URL}/transfers/corruption/{percent}" for percent in (100, 0))
        yield [Plant(("CanaryAnswersDiffer",), lambda: post(damaged), lambda: post(sound))]
        yield [Plant(("CanaryHandsNothingOver",), lambda: self.change_prefill(without_connector), self.restore_prefill)]
        yield [Plant(("CanaryFails",), lambda: self.change_prefill(with_another_name), self.restore_prefill)]
        canaries = "canary-gpt-oss-120b"
        yield [Plant(("CanaryStopped",), lambda: self.scale(canaries, 0), lambda: self.scale(canaries, 1))]
        yield [Plant(("StackNotScraped",), lambda: self.scale("-epp", 0), lambda: self.scale("-epp", 1))]
        kills = Repeated(self.kill_prefill, pause_s=4)
        yield [Plant(("DecodeRestartsAfterPrefill",), kills.begin, kills.end)]


def firing() -> set[str]:
    return {alert.labels["alertname"] for alert in alerts(PROMETHEUS_URL)}


def wait(done: Callable[[set[str]], bool]) -> bool:
    """Wait until what fires is as it should be; return false where it isn't in time."""
    limit_s = time.monotonic() + CHANGE_LIMIT_S
    while not done(firing()):
        if time.monotonic() > limit_s:
            return False
        time.sleep(0.5)
    return True


def main(name: str, folder: str) -> dict[str, Any]:
    stack, early, times = Stack(name, Path(folder)), set[str](), dict[str, list[float | None]]()
    load = Repeated(stack.load, threads=4)
    load.begin()
    time.sleep(HANDSHAKES_S)
    until_s = time.monotonic() + SOUND_S
    while time.monotonic() < until_s:
        early |= firing()
        time.sleep(0.5)
    for group in stack.groups():
        started_s, expected = time.monotonic(), {alert for plant in group for alert in plant.alerts}
        seen = dict[str, float]()

        def fired(now: set[str], seen: dict[str, float] = seen, started_s: float = started_s) -> set[str]:
            for alert in now:
                seen.setdefault(alert, time.monotonic() - started_s)
            return set(seen)

        for plant in group:
            plant.begin()
        wait(lambda now, expected=expected, fired=fired: expected <= fired(now))
        for plant in group:
            plant.end()
        ended_s = time.monotonic()
        clear = wait(lambda now, expected=expected: not expected & now)
        for alert in sorted(expected):
            times[alert] = [seen.get(alert), time.monotonic() - ended_s if clear else None]
        print(f"{group[0].alerts[0]} and others: {times}", file=sys.stderr, flush=True)
    load.end()
    return {"early": sorted(early), "alerts": times}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
