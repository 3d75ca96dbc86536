"""Loss of requests of a steady load on a rehearsed model when a serving program is killed, and the time until it is
ready again.

Run inside a rehearsal's local cluster (by `faults.py`): one victim after the other, each during a load of its own.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import httpx2
from lightkube import ApiError, Client
from lightkube.models.core_v1 import ContainerStatus
from lightkube.resources.core_v1 import Namespace, Pod
from llmd_base.errors import KitError
from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.generator import GeneratedLoad, run_load
from llmd_bench.load.workload import ConstantRate, PromptSource
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.serving import labels
from llmd_rehearsal.cluster_plan import NODE_CONTROL_PORT, SIMULATOR_URL
from llmd_rehearsal.watches import identity, is_ready

Victim = Literal[
    "endpoint picker",
    "Envoy of a router",
    "Envoy before the routers",
    "prefill server",
    "decode server",
    "etcd",
    "kube-apiserver",
    "node that reboots",
    "node that stays away",
]
VICTIMS: tuple[Victim, ...] = get_args(Victim)

REQUESTS_PER_S = 5.0
REQUESTS = 150
KILL_AT_S = REQUESTS / REQUESTS_PER_S / 2
INPUT_TOKENS, OUTPUT_TOKENS = 512, 16
REQUEST_LIMIT_S = 60.0
BACK_LIMIT_S = 120.0
NODE_LIMIT_S = 300.0
LOOK_S = 0.2

SIMULATED = "simulator://"
"""Beginning of the container IDs of simulated model servers."""


@dataclass(frozen=True)
class VictimPlace:
    """Selection of a program to kill: pods with this label and value, the name of a container, and a part of its
    command line.
    """

    label: str
    value: str
    container: str
    program: str = ""


PLACES: dict[Victim, VictimPlace] = {
    "endpoint picker": VictimPlace(labels.ROUTED, "true", "epp", "/app/epp"),
    "Envoy of a router": VictimPlace(labels.ROUTED, "true", "envoy-sidecar", "--service-node envoy-sidecar"),
    "Envoy before the routers": VictimPlace(
        "app.kubernetes.io/component", "front-door", "envoy", "--config-path /etc/envoy/envoy.yaml"
    ),
    "prefill server": VictimPlace(labels.ROLE, "prefill", "vllm"),
    "decode server": VictimPlace(labels.ROLE, "decode", "vllm"),
}

NODES: dict[Victim, float | None] = {"node that reboots": 20.0, "node that stays away": None}
"""Wall seconds until a node that lost its power is started again, by victim; None if it is started only when its pods
run elsewhere.
"""

NODE_REQUESTS = 600
NODE_KILL_AT_S = 10.0

CONTROL_PLANE = ("etcd", "kube-apiserver")
"""Process names of the Kubernetes control plane's programs that are killed. They count as ready once the API server
returns an object, which it reads from etcd.
"""


@dataclass(frozen=True)
class Loss:
    """Consequences of killing one program under load; seconds are wall time, measured. `longest_gap_s` is the longest
    time between two completed answers.
    """

    victim: Victim
    requests: int
    lost: int
    failures: tuple[str, ...]
    longest_gap_s: float
    back_after_s: float


async def lose(victim: Victim, address: str, model: str, namespace: str) -> Loss:
    """Send requests to the model, kill the program or node `victim` meanwhile, wait until it is ready again, and return
    the consequences.

    Raises:
        KitError: the victim doesn't exist, or isn't ready again in time.
    """
    client = Client(namespace=namespace)
    load = GeneratedLoad(
        NODE_REQUESTS if victim in NODES else REQUESTS,
        ConstantRate(REQUESTS_PER_S),
        PromptSource(INPUT_TOKENS, 0, victim),
        OUTPUT_TOKENS,
        request_timeout_s=REQUEST_LIMIT_S,
    )
    sending = asyncio.create_task(
        run_load(CompletionsTarget(address, model), load, limit_s=load.requests / REQUESTS_PER_S + 2 * REQUEST_LIMIT_S)
    )
    await asyncio.sleep(NODE_KILL_AT_S if victim in NODES else KILL_AT_S)
    back_after_s = await asyncio.to_thread(_hit(victim, client))
    records = await sending
    failed = [record for record in records if not record.succeeded]
    reasons = sorted({f"{record.failure}: {record.error}"[:200] for record in failed})
    ends_s = sorted(record.ended_s for record in records if record.succeeded)
    longest_gap_s = max((later - earlier for earlier, later in itertools.pairwise(ends_s)), default=0.0)
    return Loss(victim, len(records), len(failed), tuple(reasons), longest_gap_s, back_after_s)


def _hit(victim: Victim, client: Client) -> Callable[[], float]:
    """Return the function that kills the victim and returns the seconds until it is ready again."""
    if victim in NODES:
        return partial(_lose_node, client, NODES[victim])
    return partial(_kill_program, client, victim) if victim in CONTROL_PLANE else partial(_kill, client, PLACES[victim])


def _lose_node(client: Client, back_after_s: float | None) -> float:
    """Turn off the power of a decode server's node, and return the seconds until as many servers as before are ready
    again.

    The node is started again after `back_after_s` seconds, or if that is None, once its pods run elsewhere.
    """
    before = _servers(client)
    roles = [texts(metadata(pod), "labels").get(labels.ROLE) for pod in before]
    node = next(pod.spec.nodeName for pod, role in zip(before, roles, strict=True) if pod.spec and role == "decode")
    started_s = time.monotonic()
    _change_node(node, "stop")
    if back_after_s is not None:
        time.sleep(back_after_s)
        _change_node(node, "start")
    lost = {identity(pod).uid for pod in before if pod.spec and pod.spec.nodeName == node}
    ran = {identity(pod).uid: _restarts(pod) for pod in before}
    while True:
        now = [pod for pod in _servers(client) if is_ready(pod)]
        fresh = [pod for pod in now if identity(pod).uid not in lost or _restarts(pod) > ran[identity(pod).uid]]
        if len(fresh) >= len(before):
            break
        if time.monotonic() > started_s + NODE_LIMIT_S:
            raise KitError(f"{len(fresh)} of {len(before)} servers are ready {NODE_LIMIT_S:g} s after {node} was lost.")
        time.sleep(LOOK_S)
    took_s = time.monotonic() - started_s
    _change_node(node, "start")
    return took_s


def _change_node(name: str | None, change: Literal["stop", "start"]) -> None:
    httpx2.post(f"http://127.0.0.1:{NODE_CONTROL_PORT}/nodes/{name}/{change}", timeout=60).raise_for_status()


def _servers(client: Client) -> list[Pod]:
    """Return the pods of the model's servers, without terminating ones."""
    pods = [pod for role in ("prefill", "decode") for pod in client.list(Pod, labels={labels.ROLE: role})]
    return [pod for pod in pods if metadata(pod).deletionTimestamp is None]


def _restarts(pod: Pod) -> int:
    return sum(status.restartCount for status in (pod.status and pod.status.containerStatuses) or ())


def _kill_program(client: Client, name: str) -> float:
    """Kill a program of the control plane, and return the seconds until it is restarted and the API server returns
    objects of etcd.
    """
    before = _processes(name)
    if not before:
        raise KitError(f"No program of this cluster is named {name}.")
    started_s = time.monotonic()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    while not (_processes(name) - before and _answers(client)):
        if time.monotonic() > started_s + BACK_LIMIT_S:
            raise KitError(f"The API server gives no object {BACK_LIMIT_S:g} s after {name} was killed.")
        time.sleep(LOOK_S)
    return time.monotonic() - started_s


def _processes(name: str) -> set[int]:
    pids: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "comm").read_text().strip() == name:
                pids.add(int(folder.name))
    return pids


def _answers(client: Client) -> bool:
    try:
        client.get(Namespace, "default")
    except (ApiError, httpx2.HTTPError):
        return False
    return True


def _kill(client: Client, place: VictimPlace) -> float:
    """Kill one program of the selected pods with SIGKILL, and return the seconds until the container is ready in all of
    them.
    """
    before = _containers(client, place)
    if not before:
        raise KitError(f"There is no pod with the label {place.label}={place.value}.")
    restarts = sum(status.restartCount for status in before)
    started_s = time.monotonic()
    if place.program:
        _end_program(place.program)
    else:
        server = str(before[0].containerID).removeprefix(SIMULATED)
        httpx2.post(f"{SIMULATOR_URL}/servers/{server}/kill").raise_for_status()
    while True:
        statuses = _containers(client, place)
        if sum(status.restartCount for status in statuses) > restarts and all(status.ready for status in statuses):
            return time.monotonic() - started_s
        if time.monotonic() > started_s + BACK_LIMIT_S:
            what = f"{place.container} of pods with {place.label}={place.value}"
            raise KitError(f"{what} is not ready {BACK_LIMIT_S:g} s after one was killed.")
        time.sleep(LOOK_S)


def _end_program(words: str) -> None:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if words in command and not command.startswith(("/usr/bin/bwrap", "bwrap", "nsenter")):
                os.kill(int(folder.name), signal.SIGKILL)
                return
    raise KitError(f"No program of this cluster was started with {words!r}.")


def _containers(client: Client, place: VictimPlace) -> list[ContainerStatus]:
    """Return the status of the selected container in each of its pods."""
    pods = [pod.status for pod in client.list(Pod, labels={place.label: place.value}) if pod.status]
    statuses = [
        status for pod in pods for status in (*(pod.containerStatuses or ()), *(pod.initContainerStatuses or ()))
    ]
    return [status for status in statuses if status.name == place.container]


def main(address: str, model: str, namespace: str, *victims: str) -> None:
    """Kill each program that serves a model, one after the other under load, and print the consequences as one JSON
    object per line.
    """
    try:
        for victim in VICTIMS:
            if victim in victims:
                print(json.dumps(asdict(asyncio.run(lose(victim, address, model, namespace)))), flush=True)
    except KitError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
