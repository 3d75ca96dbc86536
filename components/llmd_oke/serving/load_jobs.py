"""Jobs that send load from inside the cluster, for the time of one benchmark."""

from typing import Any

from llmd_oke.bench.in_cluster.load_request import LoadRequest
from llmd_oke.bench.in_cluster.parcels import MOST_CHUNKS
from llmd_oke.catalogue.bench_jobs import InferencePerf, JobFacts
from llmd_oke.serving import bench_program, vllm
from llmd_oke.serving.manifests import api_access_mount, api_access_volume
from llmd_oke.serving.operation_jobs import Place, account, config_map, identity, job, owned

LOAD_PROGRAM = "llmd_oke.bench.in_cluster.load_job"
FILES_PROGRAM = "llmd_oke.bench.in_cluster.files_job"

REQUEST_FILE = "request.json"
CONFIG_FILE = "config.yml"
CONFIG_FOLDER = "/etc/llmd-oke"
RESULTS_FOLDER = "/results"


def load_job(place: Place, request: LoadRequest, how: JobFacts) -> dict[str, Any]:
    """The Indexed Job of a load: each pod sends its share. One that fails is not tried again and ends no other."""
    container = {
        "name": "load",
        "image": place.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": bench_program.command(),
        "args": [f"{bench_program.FOLDER}/{REQUEST_FILE}"],
        "env": identity(),
        "resources": how.load.model_dump(exclude_none=True),
        "securityContext": bench_program.CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [bench_program.mount()],
    }
    pod = {
        **_pod(place, bench_program.pod_security(how)),
        "containers": [container],
        "volumes": [bench_program.volume(f"{place.job}-program")],
    }
    pods = request.parallelism
    shares = {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
    return job(place, pod, request.limit_s, {**shares, "backoffLimitPerIndex": 0, "backoffLimit": pods})


def load_objects(place: Place, request: LoadRequest, uid: str) -> list[dict[str, Any]]:
    """What the pods of a load need besides; all of it belongs to the Job."""
    parts = [request.part_name(pod, chunk) for pod in range(request.parallelism) for chunk in range(MOST_CHUNKS)]
    ready = [request.ready_name(pod) for pod in range(request.parallelism)]
    return [
        *account(place, uid, [*parts, *ready], [request.start_name]),
        config_map(place, uid, "program", {REQUEST_FILE: request.to_json()}, bench_program.binary_data(LOAD_PROGRAM)),
    ]


def tool_job(place: Place, tool: InferencePerf, how: JobFacts, limit_s: float) -> dict[str, Any]:
    """The Job of inference-perf. The tool is an init container, so that its files are whole when the next one publishes
    them; if it fails, the pod ends with its last words.
    """
    results: dict[str, Any] = {"name": "results", "mountPath": RESULTS_FOLDER}
    scratch = {"name": "scratch", "mountPath": "/tmp"}  # noqa: S108 - a path in the container
    measuring: dict[str, Any] = {
        "name": "inference-perf",
        "image": tool.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": [tool.command],
        "args": [tool.config_option, f"{CONFIG_FOLDER}/{CONFIG_FILE}"],
        "workingDir": RESULTS_FOLDER,
        "env": [{"name": "HOME", "value": "/tmp"}, vllm.hugging_face_token()],  # noqa: S108 - a path in the container
        "resources": tool.resources.model_dump(exclude_none=True),
        "securityContext": bench_program.CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [results, scratch, {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}],
    }
    publishing: dict[str, Any] = {
        "name": "publish",
        "image": place.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": bench_program.command(),
        "args": [RESULTS_FOLDER],
        "env": [*identity(), {"name": "NAMESPACE", "value": place.namespace}],
        "resources": how.smoke.model_dump(exclude_none=True),
        "securityContext": bench_program.CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [bench_program.mount(), {**results, "readOnly": True}, api_access_mount()],
    }
    security = {**bench_program.pod_security(how), "runAsUser": tool.user_id, "fsGroup": tool.user_id}
    pod: dict[str, Any] = {
        **_pod(place, security),
        "automountServiceAccountToken": False,
        "initContainers": [measuring],
        "containers": [publishing],
        "volumes": [
            bench_program.volume(f"{place.job}-program"),
            {"name": "config", "configMap": {"name": f"{place.job}-config"}},
            {"name": "results", "emptyDir": {}},
            {"name": "scratch", "emptyDir": {}},
            api_access_volume(),
        ],
    }
    return job(place, pod, limit_s, {})


def tool_objects(place: Place, config: str, uid: str) -> list[dict[str, Any]]:
    """What the pod of a tool needs besides: its configuration, and the program that publishes its files."""
    parts = [f"{place.job}-0-{chunk}" for chunk in range(MOST_CHUNKS)]
    return [
        *account(place, uid, parts, []),
        config_map(place, uid, "config", {CONFIG_FILE: config}, {}),
        config_map(place, uid, "program", {}, bench_program.binary_data(FILES_PROGRAM)),
    ]


def start_config_map(place: Place, request: LoadRequest, uid: str) -> dict[str, Any]:
    """The ConfigMap that begins the load, by being created."""
    return {**config_map(place, uid, "start", {}, {}), "metadata": owned(place, request.start_name, uid)}


def _pod(place: Place, security: dict[str, Any]) -> dict[str, Any]:
    return {
        "serviceAccountName": place.job,
        "restartPolicy": "Never",
        "securityContext": security,
        "affinity": bench_program.rather_on(place.shape.name),
        "tolerations": place.tolerations(),
    }
