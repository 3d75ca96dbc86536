"""Passports of deployments (summaries of what was deployed and how it was verified), made from plan, smoke benchmark,
latest evaluation, and the cluster's pods and nodes.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import ContainerStatus
from lightkube.resources.core_v1 import Pod
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_bench import passport as passports
from llmd_bench.history import stack_folder
from llmd_bench.passport import ColdStart, NodeAcceptance, Passport, RunningImage
from llmd_bench.reports import LATEST
from llmd_pods.acceptance import NodeResult

from llmd_oke.catalogue.benchmarks import BUILTIN
from llmd_oke.catalogue.container_images import DIGEST
from llmd_oke.operations import evals
from llmd_oke.operations.acceptance import kept_results
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.operations.smoke import part
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.planning.releases import override_words
from llmd_oke.serving import labels


def issue_passports(stack: str, plan: Plan, reports: Path) -> list[Path]:
    """Write the passport of each model beside the model's newest report; return the paths. Models whose newest report
    is of another configuration get none.

    Raises:
        KitError: the cluster doesn't answer.
    """
    written: list[Path] = []
    for model in plan.models:
        folder = reports / stack_folder(stack) / LATEST / (part(plan, model) or "")
        summary = _summary(folder)
        if summary and summary["facts"].get("config_hash") == plan.config_hash:
            passport = make_passport(stack, plan, model, summary, reports)
            written.append(passports.write_passport(passport, folder.resolve()))
    return written


def _summary(folder: Path) -> Mapping[str, Any] | None:
    """Return the summary of a benchmark's report; None if the directory has no readable summary."""
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def make_passport(stack: str, plan: Plan, model: ModelPlan, summary: Mapping[str, Any], reports: Path) -> Passport:
    """Return the passport of one model, from the summary of its smoke benchmark, the plan, and the cluster.

    Raises:
        KitError: the cluster doesn't answer.
    """
    access = ClusterAccess(plan.kubeconfig_context)
    pods = _pods(access, plan.namespace, model.name)
    accepted = [result for pool in plan.pools for result in kept_results(access.client, pool.name)]
    evaluated = evals.latest(reports, stack, model.name, BUILTIN, plan.config_hash)
    price = plan.price_usd_per_hour * model.gpus / plan.gpus
    return Passport(
        stack=stack,
        model=model.model.name,
        config_hash=plan.config_hash,
        release=plan.release.name,
        override=override_words(plan.override),
        project_values={entry.file: entry.sha256 for entry in plan.project_entries},
        topology=str(model.topology),
        copies=len(model.units),
        gpus=model.gpus,
        gpus_reserved=summary.get("gpus_reserved"),
        price_usd_per_hour=round(price, 2),
        price_includes="list price of the GPU pools, by this model's share of their GPUs",
        images=running_images(pods),
        restarts=restarts(pods),
        basis=Basis(summary["provenance"]["numbers"]),
        simulated=tuple(summary["provenance"]["simulated"]),
        smoke_passed=summary["passed"],
        checks=summary["checks"],
        load=summary["load"],
        performance=summary["performance"],
        remote_prefill=summary["remote_prefill"],
        accuracy=passports.accuracy(evaluated),
        usd_per_million_output_tokens=passports.usd_per_million_output_tokens(price, summary["performance"]),
        cold_start=cold_start(filter(_is_server, pods), _answers(reports / stack_folder(stack), part(plan, model))),
        nodes=nodes(pods, accepted),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def nodes(pods: Iterable[Pod], accepted: Iterable[NodeResult]) -> dict[str, NodeAcceptance | None]:
    """Return the stored acceptance result of each node that runs model servers, by node; None for a node that wasn't
    tested.
    """
    kept = {
        result.node: NodeAcceptance(verdict=result.verdict, date=result.date, image=result.image) for result in accepted
    }
    names = {pod.spec.nodeName for pod in pods if _is_server(pod) and pod.spec and pod.spec.nodeName}
    return {name: kept.get(name) for name in sorted(names)}


def cold_start(pods: Iterable[Pod], answers: Iterable[datetime]) -> ColdStart | None:
    """Return how long a model's servers took from the creation of their first pod until all were Ready, and until the
    first answer; None unless all started together.

    `answers` are the times of the first answers of benchmarks, of which the earliest after the first creation is used.
    Servers didn't start together if one pod was created after another was Ready: then an update kept some servers, or
    replaced them one after the other.
    """
    servers = list(pods)
    created = [moment for pod in servers if (moment := metadata(pod).creationTimestamp)]
    ready = [_ready(pod) for pod in servers]
    if not created or max(created) > min((moment for moment in ready if moment), default=max(created)):
        return None
    applied = min(created)
    answered = min((moment for moment in answers if moment >= applied), default=None)
    all_ready = max((moment for moment in ready if moment), default=None) if all(ready) else None
    if all_ready and answered and all_ready > answered:
        all_ready = None  # the transition time of a pod that was not Ready meanwhile is later
    return ColdStart(
        applied=applied.isoformat(),
        ready=all_ready.isoformat() if all_ready else None,
        first_token=answered.isoformat() if answered else None,
        ready_s=(all_ready - applied).total_seconds() if all_ready else None,
        first_token_s=(answered - applied).total_seconds() if answered else None,
    )


def _is_server(pod: Pod) -> bool:
    """Return True for pods of model servers. Routers don't count for a cold start: they start before servers that wait
    for weights, and restart when only they are updated.
    """
    return labels.ROLE in texts(metadata(pod), "labels")


def _answers(reports: Path, part: str | None) -> Iterator[datetime]:
    """Yield the time of the first answer in each report of a stack's model; `part` is the model's subdirectory."""
    for folder in reports.glob("*/"):
        if text := (_summary(folder / (part or "")) or {}).get("first_answer"):
            yield datetime.fromisoformat(text)


def _pods(access: ClusterAccess, namespace: str, model: str) -> list[Pod]:
    """Return the pods of a model's servers and routers that aren't being deleted.

    Raises:
        KitError: the cluster doesn't answer or refuses.
    """
    try:
        pods = list(access.client.list(Pod, namespace=namespace, labels={labels.MODEL: model}))
    except (ApiError, httpx2.HTTPError) as error:
        raise KitError(f"The pods of {namespace} can't be listed: {error}") from error
    return [pod for pod in pods if metadata(pod).deletionTimestamp is None]


def running_images(pods: Iterable[Pod]) -> dict[str, RunningImage]:
    """Return the specified and the actually running images of containers, by role and container name
    (`decode/vllm`).
    """
    images: dict[str, RunningImage] = {}
    for pod in pods:
        # An image ID is `docker.io/vllm/vllm-openai@sha256:…`, or `sha256:…`.
        ids = {status.name: status.imageID.rpartition("@")[2] for status in _statuses(pod)}
        digests = {name: digest for name, digest in ids.items() if re.fullmatch(DIGEST, digest)}
        spec = pod.spec
        for container in [*(spec.initContainers or []), *spec.containers] if spec else []:
            name, reference = f"{_role(pod)}/{container.name}", container.image or ""
            seen = {*(images[name].digests if name in images else ()), digests.get(container.name)} - {None}
            tagged, _, locked = reference.partition("@")
            images[name] = RunningImage(
                asked=reference,
                tag=tagged.rpartition(":")[2],
                locked=locked or None,
                digests=tuple(sorted(digest for digest in seen if digest)),
            )
    return dict(sorted(images.items()))


def restarts(pods: Iterable[Pod]) -> dict[str, int]:
    """Return the number of restarts of containers, by role and container name, without those that never restarted."""
    counted: Counter[str] = Counter()
    for pod in pods:
        for status in _statuses(pod):
            counted[f"{_role(pod)}/{status.name}"] += status.restartCount
    return dict(sorted((name, number) for name, number in counted.items() if number))


def _role(pod: Pod) -> str:
    carried = texts(metadata(pod), "labels")
    return carried.get(labels.ROLE, "front-door" if labels.FRONT_DOOR in carried else "router")


def _statuses(pod: Pod) -> Iterable[ContainerStatus]:
    status = pod.status
    return [*(status.initContainerStatuses or []), *(status.containerStatuses or [])] if status else []


def _ready(pod: Pod) -> datetime | None:
    conditions = (pod.status.conditions if pod.status else None) or []
    true = (condition for condition in conditions if condition.type == "Ready" and condition.status == "True")
    return next((condition.lastTransitionTime for condition in true), None)
