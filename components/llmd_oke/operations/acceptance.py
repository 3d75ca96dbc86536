"""Acceptance test of GPU nodes by `llmd-oke accept`: runs the same Job as an update, for the nodes of each pool."""

import json
import secrets
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx2
import lightkube
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import ConfigMap, Node, Secret
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding, RoleBinding
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_pods.acceptance import LABEL, NAMESPACE, RESULT_KEY, NodeResult, binding_names, result_from_json
from llmd_pods.acceptance_run import REPORT_KEY, UNTESTED

from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.shapes import POOL_LABEL
from llmd_oke.objects import Manifest
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.operations.jobs import PAUSE_S, ClusterJobs
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.planning import Plan
from llmd_oke.planning.plan import PoolAcceptance
from llmd_oke.planning.pools import SYSTEM_POOL
from llmd_oke.program.acceptance import accepted_pool
from llmd_oke.serving.acceptance import (
    SLACK_S,
    job_spec,
    namespace_manifest,
    program_manifest,
    request,
    rights_of,
    shared_manifests,
)
from llmd_oke.serving.jobs import KEPT_S, JobSettings, owned

FIELD_MANAGER = "llmd-oke"
SECRET_LIMIT_S = 15.0
"""Maximum time in seconds that a command waits for an image pull Secret in a namespace that it may have created just
now, as programs that copy Secrets into new namespaces need.
"""


@dataclass(frozen=True)
class PoolResult:
    """Outcome of the acceptance test of a pool: stored results of its nodes, the reason for each node that couldn't be
    tested now, and the error if fewer than `needed` nodes passed, otherwise None.
    """

    pool: str
    needed: int
    results: tuple[NodeResult, ...]
    untested: dict[str, str]
    problem: str | None


def accept(plan: Plan, nodes: Sequence[str], progress: Progress) -> list[PoolResult]:
    """Test the given nodes, or all nodes without pods that use GPUs if none is given, pool by pool; return each pool's
    outcome.

    Raises:
        KitError: the cluster doesn't answer or refuses, the stack has no pool of AMD GPUs, no pool has such a node, or
            the Secret by which the tests' pods pull their images is missing.
    """
    client = ClusterAccess(plan.kubeconfig_context).client
    if not plan.acceptance:
        raise KitError("The stack has no pool of AMD GPUs.", "Acceptance knows ROCm's tools alone.")
    names = {accepted.pool.name: node_names(client, accepted.pool.name) for accepted in plan.acceptance}
    known = sorted(name for of_pool in names.values() for name in of_pool)
    if unknown := sorted(set(nodes) - set(known)):
        raise KitError(f"No pool of the stack has a node {', '.join(unknown)}.", f"Nodes are: {', '.join(known)}.")
    chosen = [accepted for accepted in plan.acceptance if not nodes or set(nodes) & set(names[accepted.pool.name])]
    _declare(client, (namespace_manifest(), *shared_manifests().values()))
    if plan.registry_mirror is not None and plan.registry_mirror.pull_secret is not None:
        _await_secret(client, plan.registry_mirror.pull_secret)
    return [
        _accept_pool(plan, accepted, [name for name in names[accepted.pool.name] if name in nodes], client, progress)
        for accepted in chosen
    ]


def node_names(client: lightkube.Client, pool: str) -> list[str]:
    """Return the sorted names of a pool's nodes.

    Raises:
        KitError: the cluster doesn't answer or refuses.
    """
    try:
        return sorted(metadata(node).name or "" for node in client.list(Node, labels={POOL_LABEL: pool}))
    except (ApiError, httpx2.HTTPError) as error:
        raise KitError(f"The cluster's nodes can't be read: {error}") from error


def kept_results(client: lightkube.Client, pool: str) -> list[NodeResult]:
    """Return the acceptance results of a pool's nodes that are stored in ConfigMaps, sorted by node.

    Raises:
        KitError: the cluster doesn't answer or refuses, or a result has another form.
    """
    try:
        kept = list(client.list(ConfigMap, namespace=NAMESPACE, labels={LABEL: pool}))
        results = [result_from_json(texts(item, "data").get(RESULT_KEY, "")) for item in kept]
    except (ApiError, httpx2.HTTPError, ValueError) as error:
        raise KitError(f"The results of {pool} in namespace {NAMESPACE} can't be read: {error}") from error
    return sorted(results, key=lambda result: result.node)


def _declare(client: lightkube.Client, manifests: Iterable[Manifest]) -> None:
    for manifest in manifests:
        try:
            client.apply(from_dict(dict(manifest)), field_manager=FIELD_MANAGER, force=True)
        except (ApiError, httpx2.HTTPError) as error:
            name = manifest["metadata"]["name"]
            raise KitError(f"{manifest['kind']} {name} can't be declared: {error}") from error


def _await_secret(client: lightkube.Client, name: str) -> None:
    """Wait until the namespace of acceptance tests has a Secret of this name, at most `SECRET_LIMIT_S`, after which
    KitError is raised.
    """
    until_s = time.monotonic() + SECRET_LIMIT_S
    while not _has_secret(client, name):
        if time.monotonic() > until_s:
            problem = f"Namespace {NAMESPACE} has no Secret {name}, by which the tests' pods pull images."
            remedy = "Create it there, as in the stack's namespace, and run the command again."
            raise KitError(problem, remedy)
        time.sleep(PAUSE_S)


def _has_secret(client: lightkube.Client, name: str) -> bool:
    """Tell whether the namespace of acceptance tests has a Secret; True also where the user may not read Secrets."""
    try:
        client.get(Secret, name, namespace=NAMESPACE)
    except (ApiError, httpx2.HTTPError) as error:
        code = error.status.code if isinstance(error, ApiError) else None
        if code not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
            raise KitError(f"The Secret {name} can't be read: {error}") from error
        return code == HTTPStatus.FORBIDDEN
    return True


@contextmanager
def _granted(client: lightkube.Client, job: str) -> Generator[None]:
    """Create the RBAC bindings of an acceptance Job for the block, and delete them afterwards in any case.

    Raises:
        KitError: the bindings can't be created or deleted; the remedy names those to delete by hand.
    """
    _declare(client, rights_of(job).values())
    try:
        yield
    finally:
        names = binding_names(job)
        try:
            client.delete(RoleBinding, names.of_namespace, namespace=NAMESPACE)
            client.delete(ClusterRoleBinding, names.of_cluster)
            client.delete(ClusterRole, names.of_cluster)
        except (ApiError, httpx2.HTTPError) as error:
            remedy = f"Delete ClusterRoleBinding and ClusterRole {names.of_cluster} by hand."
            raise KitError(f"The rights of Job {job} can't be taken back: {error}", remedy) from error


def _accept_pool(
    plan: Plan, accepted: PoolAcceptance, only: Sequence[str], client: lightkube.Client, progress: Progress
) -> PoolResult:
    pool, jobs = accepted.pool, ClusterJobs(client, progress)
    name = f"accept-{pool.name}-{secrets.token_hex(3)}"
    place = JobSettings(NAMESPACE, name, job_images().python, pool.shape)
    image = plan.pulled(plan.release.vllm.image).pinned
    asked = {**request(accepted_pool(accepted, ""), image, plan.registry_mirror), "only": list(only), "again": True}
    problem: str | None = None
    with (
        _granted(client, name),
        jobs.running(_job(plan, accepted, name), lambda uid: [dict(program_manifest(owned(place, name, uid), asked))]),
    ):
        try:
            jobs.await_end(place, accepted.limit_s + SLACK_S)
        except KitError as error:
            problem = error.message
        content = jobs.config_map(place, f"{name}-{UNTESTED}")
    untested: dict[str, str] = json.loads(content.texts[REPORT_KEY]) if content else {}
    return PoolResult(pool.name, accepted.needed, tuple(kept_results(client, pool.name)), untested, problem)


def _job(plan: Plan, accepted: PoolAcceptance, name: str) -> dict[str, Any]:
    system_pool = SYSTEM_POOL if plan.created is not None else None
    spec = job_spec(name, accepted.limit_s, system_pool)
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**spec, "suspend": True, "ttlSecondsAfterFinished": KEPT_S},
    }
    return plan.registry_mirror.in_manifest(manifest) if plan.registry_mirror else manifest
