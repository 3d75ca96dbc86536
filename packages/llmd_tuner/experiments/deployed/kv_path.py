"""The path of KV cache between nodes as an operation: a Job for each pair of nodes. Not run on hardware yet."""

import itertools
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from llmd_oke.catalogue.benchmarks import kv_path
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.program.models import engine_args
from llmd_oke.serving import jobs, labels
from llmd_oke.serving.jobs import JobSettings
from llmd_oke.serving.vllm import ServerSpec
from llmd_pods.errors import KitError
from llmd_pods.kv_path import SIDES, KvPath, KvPathRequest, PortShares, Side, SideReport, path_of
from llmd_pods.kv_path_job import KEY
from llmd_pods.progress import Progress

from llmd_tuner.experiments.deployed.cluster_access import ClusterAccess
from llmd_tuner.experiments.deployed.jobs import ClusterJobs, JobReader
from llmd_tuner.experiments.deployed.load import UNKNOWN_UID, place_of

Nodes = tuple[str, ...]
"""Two nodes, or none where any two will do."""


class KvPathJobs(ClusterJobs):
    """Jobs that measure paths."""

    def measure(self, place: JobSettings, request: KvPathRequest, spec: ServerSpec, nodes: Nodes) -> KvPath:
        """One path.

        Raises:
            KitError: no two nodes have a GPU and a port free, or the pods fail.
        """
        manifest = jobs.kv_path_job(place, request, spec, kv_path(), nodes)
        with self.running(manifest, lambda uid: jobs.kv_path_objects(place, request, uid)):
            self.await_pods(place, len(SIDES))
            self.await_end(place, request.limit_s)
            prefill, decode = (self._report(place, request, side) for side in SIDES)
        facts = kv_path()
        return path_of(request, prefill, decode, PortShares(facts.least_carried_share, facts.most_carried_share))

    def _report(self, place: JobSettings, request: KvPathRequest, side: Side) -> SideReport:
        content = self.config_map(place, request.report_name(side))
        if content is None:
            raise KitError(f"The {side} side of Job {request.job} left no result.")
        return SideReport.model_validate_json(content.texts[KEY])


def measure(plan: Plan, model: ModelPlan, pairs: Sequence[Nodes], progress: Progress) -> Iterator[KvPath]:
    """The paths between pairs of nodes, one after the other, so that they don't share ports.

    Raises:
        KitError: the stack has no RDMA, the cluster does not answer, or a Job fails.
    """
    spec = server_spec(plan, model)
    jobs = KvPathJobs(ClusterAccess(plan.kubeconfig_context).client, progress)
    for number, nodes in enumerate(pairs, 1):
        progress.step(f"path {number} of {len(pairs)}: {' and '.join(nodes) or 'any two nodes'}")
        request = request_of(plan, model)
        yield jobs.measure(place_of(plan, request.job), request, spec, nodes)


def manifests(plan: Plan, model: ModelPlan, nodes: Nodes) -> list[dict[str, Any]]:
    """Everything that the Job of a path would consist of.

    Raises:
        KitError: the stack has no RDMA.
    """
    spec, request = server_spec(plan, model), request_of(plan, model)
    place = place_of(plan, request.job)
    objects = jobs.kv_path_objects(place, request, UNKNOWN_UID)
    return [jobs.kv_path_job(place, request, spec, kv_path(), nodes), *objects]


def server_pairs(plan: Plan, model: ModelPlan) -> list[Nodes]:
    """The pairs of nodes between which the model's servers hand cache over: of each prefill and each decode server that
    are on different nodes.

    Raises:
        KitError: the cluster does not answer, or there is no such pair.
    """
    reader = JobReader(ClusterAccess(plan.kubeconfig_context).client, plan.namespace)
    prefill, decode = (reader.nodes({**labels.model_selector(model.name), labels.ROLE: side}) for side in SIDES)
    pairs = {tuple(sorted(pair)) for pair in itertools.product(prefill, decode) if pair[0] != pair[1]}
    if not pairs:
        message = f"{model.name} has no prefill and decode servers on different nodes."
        raise KitError(message, "Name nodes: --nodes A,B. Or leave out both: any two are taken.")
    return sorted(pairs)


def request_of(plan: Plan, model: ModelPlan) -> KvPathRequest:
    """What is read, under a new name."""
    facts = kv_path()
    return KvPathRequest(
        namespace=plan.namespace,
        job=f"kv-path-{model.name}-{secrets.token_hex(3)}",
        transfers=jobs.transfers(
            model.model, facts.prompt_tokens, model.block_size, facts.regions_per_layer[plan.release.name]
        ),
        repeats=facts.repeats,
        warm_ups=facts.warm_ups,
        limit_s=facts.limit_s,
    )


def server_spec(plan: Plan, model: ModelPlan) -> ServerSpec:
    """A server of one GPU, whose devices and settings the pods have.

    Raises:
        KitError: the stack has no RDMA.
    """
    if not plan.rdma:
        raise KitError("The stack has no RDMA: its KV cache goes over TCP.", "Set `rdma: sriov-vf`.")
    return ServerSpec(plan.release, model.model, plan.pools[0].shape, "prefill", 1, True, engine_args(model))
