"""The Job of two pods that measure the path of KV cache between two nodes: each has a GPU and a port as a server has.

Not run on hardware yet.
"""

from collections.abc import Sequence
from typing import Any

from llmd_oke.bench.in_cluster.parcels import PART_LABEL
from llmd_oke.bench.kv_path.request import SIDES, KvPathRequest, Transfer
from llmd_oke.catalogue import Model
from llmd_oke.catalogue.bench_jobs import KvPathFacts
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.serving import bench_program, vllm
from llmd_oke.serving.load_jobs import REQUEST_FILE
from llmd_oke.serving.model_pod import network_annotations
from llmd_oke.serving.operation_jobs import Place, account, config_map, identity, job
from llmd_oke.serving.vllm import ServerSpec

PROGRAM = "llmd_oke.bench.in_cluster.kv_path_job"

_HOSTNAME = "kubernetes.io/hostname"
_PODS = len(SIDES)


def transfers(
    model: Model, prompt_tokens: Sequence[int], block_tokens: int, regions_per_layer: int
) -> tuple[Transfer, ...]:
    """The caches of prompts, each in one piece and in the pieces of vLLM's NixlConnector: for each block of each layer
    one, or one of keys and one of values (`regions_per_layer`); MLA has one cache for both.

    Server of one GPU: KV bytes of a token over all layers, as the catalogue has them.
    """
    regions = model.architecture.layers * (1 if model.architecture.latent_attention else regions_per_layer)
    piece_bytes = model.kv_cache.bytes_per_token * block_tokens // regions
    found: list[Transfer] = []
    for tokens in (tokens for tokens in prompt_tokens if tokens <= model.max_model_len):
        pieces = regions * -(-tokens // block_tokens)
        found += [Transfer(tokens, piece_bytes * pieces, 1), Transfer(tokens, piece_bytes, pieces)]
    return tuple(found)


def kv_path_job(
    place: Place, request: KvPathRequest, spec: ServerSpec, facts: KvPathFacts, nodes: Sequence[str] = ()
) -> dict[str, Any]:
    """The Job: two pods that never share a node, on the named nodes where some are named."""
    pod = {
        "serviceAccountName": place.job,
        "restartPolicy": "Never",
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": {INSTANCE_TYPE_LABEL: place.shape.name},
        "affinity": _affinity(place, nodes),
        "tolerations": place.tolerations(),
        "containers": [_container(place, spec, facts)],
        "volumes": [
            bench_program.volume(f"{place.job}-program"),
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{facts.shared_memory_gib}Gi"}},
        ],
    }
    indexed = {"completionMode": "Indexed", "completions": _PODS, "parallelism": _PODS}
    made = job(place, pod, request.limit_s, indexed)
    made["spec"]["template"]["metadata"]["annotations"] = network_annotations(spec)
    return made


def kv_path_objects(place: Place, request: KvPathRequest, uid: str) -> list[dict[str, Any]]:
    """What the pods need besides; all of it belongs to the Job."""
    names = [request.meeting_name, *map(request.report_name, SIDES)]
    program = bench_program.binary_data(PROGRAM)
    return [
        *account(place, uid, names, names),
        config_map(place, uid, "program", {REQUEST_FILE: request.to_json()}, program),
    ]


def _container(place: Place, spec: ServerSpec, facts: KvPathFacts) -> dict[str, Any]:
    """GPU, port, UCX's settings and what locks memory are those of a server with one GPU."""
    resources = facts.resources.model_dump(exclude_none=True)
    devices = {spec.shape.gpu.resource: "1", spec.shape.rdma.resource: "1"}
    return {
        "name": "kv-path",
        "image": place.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "command": bench_program.command(),
        "args": [f"{bench_program.FOLDER}/{REQUEST_FILE}"],
        "env": [*identity(), *_environment(spec)],
        "resources": {kind: {**amounts, **devices} for kind, amounts in resources.items()},
        "securityContext": vllm.security_context(spec),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [bench_program.mount(), {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }


def _environment(spec: ServerSpec) -> list[dict[str, Any]]:
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    ucx = [entry for entry in vllm.environment(spec) if entry["name"].startswith("UCX_")]
    return [node, {"name": "HOME", "value": "/tmp"}, *ucx]  # noqa: S108 - a path in the container


def _affinity(place: Place, nodes: Sequence[str]) -> dict[str, Any]:
    apart = {"labelSelector": {"matchLabels": {PART_LABEL: place.job}}, "topologyKey": _HOSTNAME}
    affinity: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    if nodes:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        affinity["nodeAffinity"] = required
    return affinity
