"""Load of a profile on a rehearsed model, with observations of its servers; `autoscaling.py` runs this program.

Run inside a rehearsal's local cluster: autoscaling_load.py FILE, where FILE contains an `Order` as JSON; the result is
written to FILE with the suffix `.result.json`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.config.kubeconfig import KubeConfig
from lightkube.models.core_v1 import Container
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Node, Pod
from llmd_base.errors import KitError
from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.generator import GeneratedLoad, run_load, wait_for_answer
from llmd_bench.load.workload import PromptSource, RateProfile
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.serving import labels
from llmd_rehearsal.watches import is_ready

LOOK_S = 1.0
REQUEST_LIMIT_S = 300.0
READY_LIMIT_S = 300.0
ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Order:
    """Load to send to a rehearsed model. Times and rates of the profile are in seconds on real hardware, of which each
    takes `time_scale` wall seconds.
    """

    address: str
    model: str
    namespace: str
    resource: str
    name: str
    points: Sequence[tuple[float, float]]
    input_tokens: int
    output_tokens: int
    time_scale: float


@dataclass(frozen=True)
class AnswerTimes:
    """Result of one request: due time in wall seconds, latencies in milliseconds on real hardware, and the failure,
    None if it succeeded.
    """

    due_s: float
    ttft_ms: float | None
    tpot_ms: float | None
    failure: str | None


@dataclass(frozen=True)
class Look:
    """Observation of a model's servers at one moment while the load is sent.

    Attributes:
        at_s: wall seconds since the start.
        gpus: GPUs of the pods on nodes.
        ending_gpus: GPUs of terminating pods.
        node_gpus: GPUs of the nodes.
        replicas: desired number of servers, by role.
        ready: number of Ready servers, by role.
    """

    at_s: float
    gpus: int
    ending_gpus: int
    node_gpus: int
    replicas: dict[str, int]
    ready: dict[str, int]


def look(client: Client, order: Order, at_s: float) -> Look:
    """Return an observation of the model's pods, nodes and Deployments from the API server."""
    pods = [pod for pod in client.list(Pod) if pod.spec and pod.spec.nodeName and _role(pod) in ROLES]
    pods = [pod for pod in pods if pod.status and pod.status.phase not in {"Succeeded", "Failed"}]
    ending = [pod for pod in pods if metadata(pod).deletionTimestamp is not None]
    deployments = {_role(item): item.spec.replicas or 0 for item in client.list(Deployment) if item.spec}
    return Look(
        at_s,
        sum(_gpus(pod, order.resource) for pod in pods),
        sum(_gpus(pod, order.resource) for pod in ending),
        sum(_amount(node.status, "allocatable", order.resource) for node in client.list(Node)),
        {role: deployments.get(role, 0) for role in ROLES},
        {role: sum(_role(pod) == role and is_ready(pod) for pod in pods) for role in ROLES},
    )


def _role(thing: object) -> str:
    return texts(metadata(thing), "labels").get(labels.ROLE, "")


def _gpus(pod: Pod, resource: str) -> int:
    containers: list[Container] = pod.spec.containers if pod.spec else []
    return sum(_amount(container.resources, "limits", resource) for container in containers)


def _amount(thing: object, field: str, resource: str) -> int:
    return int(texts(thing, field).get(resource, 0))


async def watch(order: Order, looks: list[Look]) -> None:
    """Append an observation of the model's servers to `looks` once a second until cancelled."""
    client = Client(config=KubeConfig.from_env(), namespace=order.namespace, trust_env=False)
    started_s = time.monotonic()
    while True:
        looks.append(await asyncio.to_thread(look, client, order, time.monotonic() - started_s))
        await asyncio.sleep(LOOK_S)


async def send(order: Order) -> tuple[list[AnswerTimes], list[Look]]:
    """Wait until the model answers, send all requests of the load profile, and return their results and the
    observations of the servers.

    Raises:
        KitError: the model doesn't answer in time.
    """
    profile = RateProfile(order.name, tuple((at_s, rate) for at_s, rate in order.points))
    trace = profile.trace()
    load = GeneratedLoad(
        len(trace.entries),
        trace,
        PromptSource(order.input_tokens, 0, order.name),
        order.output_tokens,
        request_timeout_s=REQUEST_LIMIT_S,
        time_scale=order.time_scale,
    )
    target, looks = CompletionsTarget(order.address, order.model), list[Look]()
    await wait_for_answer(target, limit_s=READY_LIMIT_S, time_scale=order.time_scale)
    watching = asyncio.create_task(watch(order, looks))
    limit_s = profile.duration_s * order.time_scale + REQUEST_LIMIT_S
    records = await run_load(target, load, limit_s=limit_s)
    watching.cancel()
    answers: list[AnswerTimes] = []
    for record in records:
        model_time = record.in_model_time(order.time_scale)
        failure = None if record.succeeded else f"{record.failure}: {record.error}"[:200]
        due_s = record.started_s if record.due_s is None else record.due_s
        answers.append(AnswerTimes(due_s, _ms(model_time.ttft_s), _ms(model_time.tpot_s), failure))
    return answers, looks


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


def main(file: Path) -> None:
    """Send the load that the JSON file describes, and write the result to the file with the suffix `.result.json`."""
    order = Order(**json.loads(file.read_text()))
    try:
        answers, looks = asyncio.run(send(order))
    except KitError as error:
        sys.exit(f"error {error}")
    result: dict[str, Any] = {"answers": [asdict(item) for item in answers], "looks": [asdict(item) for item in looks]}
    file.with_suffix(".result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
