"""Jobs of single commands, which don't belong to a deployment: loads, benchmark tools, evaluations.

The Job is created first, suspended. It owns all other objects, which are deleted with it. Kubernetes deletes the Job an
hour after its end if the command hasn't.
"""

import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

from llmd_base import config_maps
from llmd_base.config_maps import MAX_CHUNKS
from llmd_base.records import document
from llmd_bench.jobs import package as package_job
from llmd_bench.load.pod_load import LoadRequest

from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.benchmarks import EvalPackage, InferencePerf, JobFacts, requirements
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.kubernetes_types import (
    JobSpec,
    ObjectMeta,
    PodSecurityContext,
    PodSpec,
    PolicyRule,
    Toleration,
    VolumeMount,
)
from llmd_oke.objects import Manifest, pod_security
from llmd_oke.serving import bench_program, vllm
from llmd_oke.serving.args import NodeTaintArgs
from llmd_oke.serving.manifests import api_access_mount, api_access_volume, role, role_binding, tolerations

KEPT_S = 3600
"""Seconds after a Job's end until Kubernetes deletes it."""

STARTING_S = 900
"""Seconds that pods may take to be scheduled, to pull their image and to start."""

LOAD_PROGRAM = "llmd_bench.jobs.load"
FILES_PROGRAM = "llmd_bench.jobs.files"

REQUEST_FILE = "request.json"
CONFIG_FILE = "config.yml"
CONFIG_FOLDER = "/etc/llmd-oke"
RESULTS_FOLDER = "/results"

PROGRAM_FILE, REQUIREMENTS_FILE = "package_job.py", "requirements.lock"
FOLDER = "/opt/llmd-oke"
SCRATCH = "/tmp"  # noqa: S108 - a path in the container


@dataclass(frozen=True)
class JobSettings:
    """Names and placement of a Job. Its pods prefer nodes of `shape`, which already have the servers' image.

    The pods tolerate the taints of the shape's nodes and `node_taints`. `mirror` is the private registry from which
    they pull; None for the registries in the images' names.
    """

    namespace: str
    job: str
    image: ContainerImage
    shape: Shape
    node_taints: tuple[NodeTaintArgs, ...] = ()
    mirror: MirrorRegistry | None = None

    def tolerations(self) -> list[Toleration]:
        """Return a toleration for each taint of the nodes."""
        return tolerations(self.shape, self.node_taints)


def job(settings: JobSettings, pod: PodSpec, limit_s: float, **more: Unpack[JobSpec]) -> Manifest:
    """Return a Job with a pod.

    Args:
        settings: names and placement of the Job.
        pod: specification of the pod.
        limit_s: limit of the pod's run time in seconds.
        **more: further fields of the Job's specification, some of them instead of the usual ones.
    """
    own = {"app.kubernetes.io/part-of": "llmd-oke", config_maps.PART_LABEL: settings.job}
    spec: JobSpec = {
        "suspend": True,
        "backoffLimit": 0,
        "activeDeadlineSeconds": round(limit_s) + STARTING_S,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": {"metadata": {"labels": own}, "spec": pod},
        **more,
    }
    metadata = {"name": settings.job, "namespace": settings.namespace, "labels": own}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    return settings.mirror.in_manifest(manifest) if settings.mirror else manifest


def config_map(
    settings: JobSettings, uid: str, role: str, data: dict[str, str], binary_data: dict[str, str]
) -> Manifest:
    """Return a ConfigMap named `<job>-<role>` that the Job with the UID `uid` owns."""
    content = {"data": data, "binaryData": binary_data}
    metadata = owned(settings, f"{settings.job}-{role}", uid)
    filled = {key: part for key, part in content.items() if part}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **filled}


def owned(settings: JobSettings, name: str, uid: str) -> ObjectMeta:
    """Return the metadata of an object that the Job with the UID `uid` owns, so that Kubernetes deletes it with the
    Job.
    """
    return cast("ObjectMeta", config_maps.owned_metadata(name, settings.namespace, settings.job, uid))


def account(settings: JobSettings, uid: str, written: Sequence[str], read: Sequence[str]) -> list[Manifest]:
    """Return ServiceAccount, Role and RoleBinding of the Job's pods, which may write only the ConfigMaps named in
    `written` and read only those in `read`.
    """
    metadata = owned(settings, settings.job, uid)
    rules = [_rule(written, ["create", "patch"]), *([_rule(read, ["get"])] if read else [])]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        role(metadata, rules),
        role_binding(metadata, settings.job),
    ]


def _rule(names: Iterable[str], verbs: list[str]) -> PolicyRule:
    return {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": list(names), "verbs": verbs}


def load_job(settings: JobSettings, request: LoadRequest, facts: JobFacts) -> Manifest:
    """Return the Indexed Job of a load, in which each pod sends its share of the requests. Failed pods aren't retried,
    and the other pods continue.
    """
    container = bench_program.container(
        name="load",
        image=settings.image.pinned,
        command=bench_program.command(),
        args=[f"{bench_program.FOLDER}/{REQUEST_FILE}"],
        env=bench_program.identity(),
        resources=bench_program.resources(facts.load),
        volumeMounts=[bench_program.mount()],
    )
    pod: PodSpec = {
        **_load_pod(settings, pod_security(facts.user_id)),
        "containers": [container],
        "volumes": [bench_program.volume(f"{settings.job}-program")],
    }
    pods = request.parallelism
    return job(
        settings,
        pod,
        request.limit_s,
        completionMode="Indexed",
        completions=pods,
        parallelism=pods,
        backoffLimitPerIndex=0,
        backoffLimit=pods,
    )


def load_objects(settings: JobSettings, request: LoadRequest, uid: str) -> list[Manifest]:
    """Return the other objects that the pods of a load need: account and ConfigMap, owned by the Job with the UID
    `uid`.
    """
    parts = [request.part_name(pod, chunk) for pod in range(request.parallelism) for chunk in range(MAX_CHUNKS)]
    ready = [request.ready_name(pod) for pod in range(request.parallelism)]
    return [
        *account(settings, uid, [*parts, *ready], [request.start_name]),
        config_map(
            settings, uid, "program", {REQUEST_FILE: request.to_json()}, bench_program.binary_data(LOAD_PROGRAM)
        ),
    ]


def tool_job(settings: JobSettings, tool: InferencePerf, facts: JobFacts, limit_s: float) -> Manifest:
    """Return the Job of inference-perf. The tool runs as an init container, so that its files are complete when the
    second container publishes them. If the tool fails, the pod's status contains the end of the tool's log.
    """
    results: VolumeMount = {"name": "results", "mountPath": RESULTS_FOLDER}
    scratch: VolumeMount = {"name": "scratch", "mountPath": SCRATCH}
    measuring = bench_program.container(
        name="inference-perf",
        image=tool.image.pinned,
        command=[tool.command],
        args=[tool.config_option, f"{CONFIG_FOLDER}/{CONFIG_FILE}"],
        workingDir=RESULTS_FOLDER,
        env=[{"name": "HOME", "value": SCRATCH}, vllm.hugging_face_token()],
        resources=bench_program.resources(tool.resources),
        volumeMounts=[results, scratch, {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}],
    )
    publishing = bench_program.container(
        name="publish",
        image=settings.image.pinned,
        command=bench_program.command(),
        args=[RESULTS_FOLDER],
        env=[*bench_program.identity(), {"name": "NAMESPACE", "value": settings.namespace}],
        resources=bench_program.resources(facts.smoke),
        volumeMounts=[bench_program.mount(), {**results, "readOnly": True}, api_access_mount()],
    )
    security: PodSecurityContext = {**pod_security(tool.user_id), "fsGroup": tool.user_id}
    pod: PodSpec = {
        **_load_pod(settings, security),
        "automountServiceAccountToken": False,
        "initContainers": [measuring],
        "containers": [publishing],
        "volumes": [
            bench_program.volume(f"{settings.job}-program"),
            {"name": "config", "configMap": {"name": f"{settings.job}-config"}},
            {"name": "results", "emptyDir": {}},
            {"name": "scratch", "emptyDir": {}},
            api_access_volume(),
        ],
    }
    return job(settings, pod, limit_s)


def tool_objects(settings: JobSettings, config: str, uid: str) -> list[Manifest]:
    """Return the other objects that the pod of a tool needs: its account, its configuration, and the program that
    publishes its files. The Job with the UID `uid` owns them.
    """
    parts = [f"{settings.job}-0-{chunk}" for chunk in range(MAX_CHUNKS)]
    return [
        *account(settings, uid, parts, []),
        config_map(settings, uid, "config", {CONFIG_FILE: config}, {}),
        config_map(settings, uid, "program", {}, bench_program.binary_data(FILES_PROGRAM)),
    ]


def start_config_map(settings: JobSettings, request: LoadRequest, uid: str) -> Manifest:
    """Return the ConfigMap whose creation starts the load; the Job with the UID `uid` owns it."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": owned(settings, request.start_name, uid)}


def _load_pod(settings: JobSettings, security: PodSecurityContext) -> PodSpec:
    return {
        "serviceAccountName": settings.job,
        "restartPolicy": "Never",
        "securityContext": security,
        "affinity": bench_program.rather_on(settings.shape.name),
        "tolerations": settings.tolerations(),
    }


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of a model. `url` is the router's without `/v1`, `model` the served name, `concurrency` the number of
    concurrent questions.
    """

    name: str
    package: EvalPackage
    url: str
    model: str
    concurrency: int


def evaluation_job(settings: JobSettings, evaluation: Evaluation, facts: JobFacts, limit_s: float) -> Manifest:
    """Return the Job of a published evaluation on a plain Python image: it installs the evaluation's package from a
    lock file with hashes, runs it against the router and reports. It needs access to the package index and to the host
    of the questions, both outside the cluster.
    """
    container = bench_program.container(
        name="evaluation",
        image=settings.image.pinned,
        command=["python3", f"{FOLDER}/{PROGRAM_FILE}"],
        workingDir=SCRATCH,
        env=[
            {"name": "HOME", "value": SCRATCH},
            {"name": "OPENAI_API_KEY", "value": "none"},
            {"name": package_job.SPEC_VARIABLE, "value": json.dumps(_evaluation_spec(evaluation))},
            vllm.hugging_face_token(),
        ],
        resources=bench_program.resources(facts.evaluation),
        volumeMounts=[
            {"name": "program", "mountPath": FOLDER, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH},
        ],
    )
    pod: PodSpec = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": pod_security(facts.user_id),
        "tolerations": settings.tolerations(),
        "containers": [container],
        "volumes": [
            {"name": "program", "configMap": {"name": f"{settings.job}-program"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    return job(settings, pod, limit_s)


def evaluation_objects(settings: JobSettings, evaluation: Evaluation, uid: str) -> list[Manifest]:
    """Return the ConfigMap with the program and the lock file from which the evaluation's package is installed; the Job
    with the UID `uid` owns it.
    """
    files = {PROGRAM_FILE: inspect.getsource(package_job), REQUIREMENTS_FILE: requirements(evaluation.package)}
    return [config_map(settings, uid, "program", files, {})]


def _evaluation_spec(evaluation: Evaluation) -> dict[str, Any]:
    package = evaluation.package
    filled = document("model url concurrency", evaluation)
    return document(
        "evaluation reader requirements program result_files",
        package,
        evaluation=evaluation.name,
        requirements=f"{FOLDER}/{REQUIREMENTS_FILE}",
        program=[word.format(**filled) for word in package.program],
    )
