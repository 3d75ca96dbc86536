"""Cache of model weights inside the cluster: its volume, and the Jobs that fill it before servers start."""

import json
from typing import NotRequired, TypedDict

import pulumi
from llmd_base.errors import KitError
from llmd_pods.prewarm import owner

from llmd_oke.catalogue import CatalogueModel, Shape
from llmd_oke.catalogue.benchmarks import bench_jobs
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.serving import model_cache as facts
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.kubernetes_types import Container, PodAffinityTerm, PodSpec, SecurityContext, Volume, VolumeMount
from llmd_oke.objects import (
    PART_OF,
    RESTRICTED_CONTAINER,
    Manifest,
    ModelRef,
    ShapeRef,
    field_value,
    inputs,
    register_outputs,
    resolve_model,
    resolve_shape,
    when_declared,
)
from llmd_oke.planning import placement
from llmd_oke.serving import bench_program, compiled_code, kv_cache_disk, vllm
from llmd_oke.serving.args import DraftFilesArgs, ModelCacheMountArgs, NodeTaintArgs, PrewarmArgs
from llmd_oke.serving.manifests import declare, object_metadata, timeouts, tolerations
from llmd_oke.serving.vllm import CACHE_FOLDER, hugging_face_token, pinned_revision

DEFAULT_TIMEOUT_S = 7200
VOLUME_S = 300
TRIES = 6
PREWARM = "llmd-oke/prewarm"

PROGRAM = "prewarm"
"""Name of the package of `llmd_pods` whose program fills a model cache."""

PROGRAM_VOLUME = "prewarm-program"
PROGRAM_FOLDER = "/opt/llmd-oke"

ADAPTERS_VOLUME = "adapters"
ADAPTERS_FOLDER = "/opt/llmd-oke/adapters"
ADAPTERS_FILE = "adapters.json"

SOURCE_SECRET = "model-source"  # noqa: S105 - the name of a Secret
SOURCE_SECRET_KEY = "url"  # noqa: S105 - a key's name


class AdapterArgs(TypedDict):
    """A LoRA adapter at one revision."""

    name: str
    """Name of the adapter in requests."""
    served_name: str
    """Name of this revision on servers; each revision has a name of its own."""
    repository: str
    """Repository on Hugging Face, or prefix of the bucket's objects."""
    revision: str
    """Commit of the repository."""


class AdaptedModelArgs(TypedDict):
    """A model whose servers load LoRA adapters, and these adapters."""

    name: str
    """Name of the model's objects."""
    model: ModelRef
    """Model of the catalogue."""
    max_rank: int
    """Largest rank of an adapter that servers accept."""
    adapters: list[AdapterArgs]
    """Adapters to cache."""


class ModelDraftArgs(TypedDict):
    """A model's draft whose files aren't part of the model's repository."""

    model: ModelRef
    """Model of the catalogue."""
    repository: str
    """Repository on Hugging Face, or prefix of the bucket's objects."""
    revision: NotRequired[str | None]
    """Commit of the repository; the newest at the time of the download if left out."""


class CachePlaceArgs(TypedDict):
    """Place and content of a model cache, by which servers mount it."""

    kind: str
    """`node-disk`, `file-storage` or `lustre`."""
    drafts: NotRequired[list[ModelDraftArgs] | None]
    """Drafts of models to cache beside the models' weights; none if left out."""
    path: NotRequired[str | None]
    """Directory on the nodes, for `node-disk`; `/mnt/nvme/models` if left out."""
    compiled_path: NotRequired[str | None]
    """Directory on the nodes, of this stack only, for code that servers compile at their start, for `node-disk`; not
    stored if left out."""
    kv_cache_path: NotRequired[str | None]
    """Directory on the nodes, of this stack only, for servers' files with KV cache, for `node-disk`; none if left out.
    """
    prewarm: NotRequired[PrewarmArgs | None]
    """Download of the weights before servers start; servers download the weights themselves if left out."""
    revisions: NotRequired[dict[str, str] | None]
    """Commits of the repositories by model; they override the commit in `prewarm`."""


class ModelCacheArgs(CachePlaceArgs):
    """Arguments of a model cache."""

    namespace: pulumi.Input[str]
    """Namespace of the model servers."""
    service_account: pulumi.Input[str]
    """ServiceAccount of the pods that fill the cache. It needs no rights."""
    shape: ShapeRef
    """OCI shape of the nodes, from the catalogue."""
    node_taints: NotRequired[list[NodeTaintArgs] | None]
    """Taints of the nodes beyond those of their shape; none if left out."""
    nodes: int
    """Number of nodes that use the cache; with `node-disk`, the number of pods that fill it."""
    models: list[ModelRef]
    """Models of the catalogue to cache."""
    adapted_models: NotRequired[list[AdaptedModelArgs] | None]
    """Models with LoRA adapters to cache; none if left out."""
    volume_handle: NotRequired[pulumi.Input[str] | None]
    """Volume handle by which the CSI driver identifies the file system, for `file-storage` and `lustre`."""
    volume_name: NotRequired[str | None]
    """Name of the PersistentVolume, unique in the cluster; the component's name if left out."""
    capacity_gib: NotRequired[int | None]
    """Size of a shared file system in GiB; only nominal for File Storage, which grows automatically."""
    source_url: NotRequired[pulumi.Input[str] | None]
    """Pre-authenticated request that may list and read a bucket, for the source `object-storage`; stored as a Secret.
    """
    timeout_s: NotRequired[int | None]
    """Limit of the download of one model in seconds; 7200 if left out."""


class ModelCache(pulumi.ComponentResource):
    """A directory on each node's disks or one volume for all nodes, filled with the weights of models.

    Declare units after it: it is ready once the cache contains all weights.
    """

    claim: pulumi.Output[str]
    """Name of the PersistentVolumeClaim of a shared volume; empty for `node-disk`."""
    jobs: pulumi.Output[list[str]]
    """Names of the Jobs that filled the cache."""

    def __init__(self, name: str, args: ModelCacheArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelCache", name, inputs(self, args, "source_url"), opts)
        child = pulumi.ResourceOptions(parent=self)
        self.claim = self._shared_volume(name, args) if args["kind"] != "node-disk" else pulumi.Output.from_input("")
        needed: list[pulumi.Resource] = []
        models: dict[str, CatalogueModel] = {}
        if args.get("prewarm") is not None:
            needed.append(_files(name, PROGRAM, args, child, "program"))
            models = {model.name: model for model in map(resolve_model, args["models"])}
        if args.get("compiled_path"):
            needed.append(_files(name, compiled_code.PROGRAM, args, child, "compiled-code"))
        if args.get("kv_cache_path"):
            needed.append(_files(name, kv_cache_disk.PROGRAM, args, child))
        source_url = args.get("source_url")
        if source_url is not None:
            needed.append(declare(f"{name}-source", source_secret(args["namespace"], source_url), child))
        jobs = [
            self._job(name, job(model, resolve_shape(args["shape"]), args, mount(args, key, self.claim)), args, needed)
            for key, model in sorted(models.items())
        ]
        for adapted in args.get("adapted_models") or []:
            list_ = declare(
                f"{name}-{adapters_name(adapted['name'])}", adapters_list(adapted, args["namespace"]), child
            )
            model = resolve_model(adapted["model"])
            manifest = job(model, resolve_shape(args["shape"]), args, mount(args, model.name, self.claim), adapted)
            jobs.append(self._job(name, manifest, args, [*needed, list_]))
        self.jobs = pulumi.Output.all(*jobs)
        register_outputs(self)

    def _shared_volume(self, name: str, args: ModelCacheArgs) -> pulumi.Output[str]:
        limited = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(VOLUME_S), delete_before_replace=True)
        volume = declare(f"{name}-volume", persistent_volume(name, args), limited)
        after = pulumi.ResourceOptions.merge(limited, pulumi.ResourceOptions(depends_on=[volume]))
        return when_declared(declare(f"{name}-claim", claim(name, args), after), name)

    def _job(
        self, name: str, manifest: Manifest, args: ModelCacheArgs, needed: list[pulumi.Resource]
    ) -> pulumi.Output[str]:
        limit_s = args.get("timeout_s") or DEFAULT_TIMEOUT_S
        opts = pulumi.ResourceOptions(
            parent=self,
            depends_on=needed,
            custom_timeouts=timeouts(limit_s + placement.SCHEDULING_S),
            delete_before_replace=True,
        )
        own_name = manifest["metadata"]["name"]
        return when_declared(declare(f"{name}-{own_name}", manifest, opts), own_name)


def mount(args: CachePlaceArgs, model_name: str, claim: pulumi.Input[str]) -> ModelCacheMountArgs:
    """Return the cache as the servers of a model mount it: the argument `model_cache` of their unit."""
    place: ModelCacheMountArgs = {"path": args.get("path") or "/mnt/nvme/models"}
    if args["kind"] != "node-disk":
        place = {"claim": claim}
    else:
        place |= {"compiled_path": args.get("compiled_path"), "kv_cache_path": args.get("kv_cache_path")}
    settings = args.get("prewarm")
    if settings is None:
        return place
    prewarm: PrewarmArgs = {
        "source": settings["source"],
        "connections": settings.get("connections", 8),
        "belongs_to_root": settings.get("belongs_to_root", args["kind"] != "file-storage"),
    }
    if revision := (args.get("revisions") or {}).get(model_name) or settings.get("revision"):
        prewarm["revision"] = revision
    place["prewarm"] = prewarm
    if drafts := [draft for draft in args.get("drafts") or [] if resolve_model(draft["model"]).name == model_name]:
        place["drafts"] = [
            DraftFilesArgs(repository=draft["repository"], revision=draft.get("revision")) for draft in drafts
        ]
    return place


def persistent_volume(name: str, args: ModelCacheArgs) -> Manifest:
    """Return the PersistentVolume of an existing file system. It is retained when the claim is deleted, since
    downloading the weights again takes long.

    Raises:
        KitError: the kind of cache is unknown, or the volume handle is missing.
    """
    if args["kind"] not in {"file-storage", "lustre"}:
        raise KitError(f"{args['kind']!r} is no kind of model cache.", "Known: node-disk, file-storage, lustre.")
    handle = args.get("volume_handle")
    if handle is None:
        raise KitError(f"A model cache of the kind {args['kind']} needs volume_handle.")
    driver = facts().file_storage if args["kind"] == "file-storage" else facts().lustre
    attributes = facts().lustre.volume_attributes if args["kind"] == "lustre" else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": args.get("volume_name") or name, "labels": PART_OF},
        "spec": {
            "capacity": {"storage": _capacity(args)},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "mountOptions": list(driver.mount_options),
            "claimRef": {"namespace": args["namespace"], "name": name},
            "csi": {
                "driver": driver.driver,
                "volumeHandle": handle,
                **({"volumeAttributes": attributes} if attributes else {}),
            },
        },
    }


def claim(name: str, args: ModelCacheArgs) -> Manifest:
    """Return the PersistentVolumeClaim, which names its volume and uses no StorageClass."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": object_metadata(name, args["namespace"]),
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": args.get("volume_name") or name,
            "resources": {"requests": {"storage": _capacity(args)}},
        },
    }


def adapters_name(model_name: str) -> str:
    """Return the name of the ConfigMap with the list of a model's adapters."""
    return f"{model_name}-adapters"


def adapters_list(adapted: AdaptedModelArgs, namespace: pulumi.Input[str]) -> Manifest:
    """Return the ConfigMap with the list of a model's adapters, which pods read at their start. Its name is independent
    of the list, so that a changed list replaces no pods.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": object_metadata(adapters_name(adapted["name"]), namespace),
        "data": {ADAPTERS_FILE: _adapters_text(adapted)},
    }


def _adapters_text(adapted: AdaptedModelArgs) -> str:
    adapters = [
        {"servedName": item["served_name"], "repository": item["repository"], "revision": item["revision"]}
        for item in adapted["adapters"]
    ]
    facts = {"name": adapters_name(adapted["name"]), "maxRank": adapted["max_rank"], "adapters": adapters}
    return json.dumps(facts, sort_keys=True)


def job(
    model: CatalogueModel,
    shape: Shape,
    args: ModelCacheArgs,
    cache: ModelCacheMountArgs,
    adapted: AdaptedModelArgs | None = None,
) -> Manifest:
    """Return the Job that fills the cache with one model, or with adapters of the model: one pod on each node for local
    disks, a single pod for a shared volume.
    """
    pods = args["nodes"] if args["kind"] == "node-disk" else 1
    name = job_name(model) if adapted is None else f"prewarm-{adapters_name(adapted['name'])}"
    own = {**PART_OF, PREWARM: name}
    text = None if adapted is None else _adapters_text(adapted)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": args["namespace"],
            "labels": own,
            "annotations": {"pulumi.com/replaceUnready": "true"},
        },
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": TRIES * pods,
            "activeDeadlineSeconds": args.get("timeout_s") or DEFAULT_TIMEOUT_S,
            "template": {"metadata": {"labels": own}, "spec": _pod(model, shape, args, cache, name, text)},
        },
    }


def job_name(model: CatalogueModel) -> str:
    """Return the name of the Job that downloads a model into the cache."""
    return f"prewarm-{model.name.replace('.', '-')}"


def _files(
    name: str, package: str, args: ModelCacheArgs, child: pulumi.ResourceOptions, before: str | None = None
) -> pulumi.Resource:
    """Declare the ConfigMap of a package of `llmd_pods`. Other files are another resource, as its name has their digest
    too: the one before stays until an update has ended, so that a failed update can be taken back. `before` is the end
    of its name in states of earlier versions; None if they have no such ConfigMap.
    """
    aliases = [pulumi.Alias(name=f"{name}-{before}")] if before else []
    known = pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(aliases=aliases))
    manifest = bench_program.files_config_map(package, args["namespace"])
    return declare(f"{name}-{bench_program.files_name(package)}", manifest, known)


def source_secret(namespace: pulumi.Input[str], url: pulumi.Input[str]) -> Manifest:
    """Return the Secret with the pre-authenticated request of a bucket."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": object_metadata(SOURCE_SECRET, namespace),
        "stringData": {SOURCE_SECRET_KEY: pulumi.Output.secret(url)},
    }


def _pod(
    model: CatalogueModel,
    shape: Shape,
    args: ModelCacheArgs,
    cache: ModelCacheMountArgs,
    job: str,
    adapters: str | None,
) -> PodSpec:
    *init_containers, container = containers(model, cache, adapters)
    pod: PodSpec = {
        "serviceAccountName": field_value(args["service_account"]),
        "automountServiceAccountToken": False,
        "restartPolicy": "OnFailure",
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": {INSTANCE_TYPE_LABEL: shape.name},
        "tolerations": tolerations(shape, args.get("node_taints")),
        "containers": [container],
        "volumes": [vllm.cache_volume(cache), program_volume()],
    }
    if args["kind"] == "node-disk":
        apart: PodAffinityTerm = {
            "labelSelector": {"matchLabels": {PREWARM: job}},
            "topologyKey": "kubernetes.io/hostname",
        }
        pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    if init_containers:
        pod["initContainers"] = init_containers
    return pod


def _capacity(args: ModelCacheArgs) -> str:
    return f"{args.get('capacity_gib') or facts().file_storage.smallest_claim_gib}Gi"


def containers(model: CatalogueModel, cache: ModelCacheMountArgs, adapters: str | None = None) -> list[Container]:
    """Return the containers that fill the cache with a model, in the order in which they run: one that changes the
    owner of the cache's directory, if needed, and the one that downloads. They end immediately if the cache has the
    whole model.

    `adapters` is the JSON list of the model's adapters. If None, the list is read from the ConfigMap that the cache
    names.
    """
    prewarm = cache.get("prewarm", PrewarmArgs(source="hugging-face"))
    prewarm_container = _prewarm_container(model, cache, prewarm, adapters)
    if not prewarm.get("belongs_to_root"):
        return [prewarm_container]
    owner_container: Container = {
        **_python("prewarm-owner", "prewarm.owner"),
        "args": [f"--cache={CACHE_FOLDER}", f"--user={bench_jobs().user_id}"],
        "securityContext": bench_program.root_with("CHOWN"),  # without connections and secrets
    }
    return [owner_container, prewarm_container]


def _prewarm_container(
    model: CatalogueModel, cache: ModelCacheMountArgs, prewarm: PrewarmArgs, adapters: str | None
) -> Container:
    fields = {"file", "url", "sha256", "bytes"}
    vocabulary = json.dumps(model.vocabulary.model_dump(include=fields)) if model.vocabulary else None
    user: SecurityContext = {"runAsNonRoot": True, "runAsUser": bench_jobs().user_id, "runAsGroup": owner.GROUP}
    mounts: list[VolumeMount] = []
    if adapters is None and "adapters" in cache:
        adapters = f"@{ADAPTERS_FOLDER}/{ADAPTERS_FILE}"
        mounts.append({"name": ADAPTERS_VOLUME, "mountPath": ADAPTERS_FOLDER, "readOnly": True})
    return {
        **_python("prewarm", "prewarm", *mounts),
        "args": [
            f"--cache={CACHE_FOLDER}",
            f"--repository={model.repository}",
            f"--revision={pinned_revision(model, cache) or 'main'}",
            f"--source={prewarm['source']}",
            f"--connections={prewarm.get('connections', 8)}",
            *([f"--vocabulary={vocabulary}"] if vocabulary else []),
            *(f"--draft={draft['repository']}@{draft.get('revision') or 'main'}" for draft in cache.get("drafts", [])),
            *([f"--adapters={adapters}"] if adapters else []),
        ],
        "env": [
            {
                "name": "MODEL_SOURCE_URL",
                "valueFrom": {"secretKeyRef": {"name": SOURCE_SECRET, "key": SOURCE_SECRET_KEY}},
            }
            if prewarm["source"] == "object-storage"
            else hugging_face_token()
        ],
        "securityContext": {**RESTRICTED_CONTAINER, **user},
    }


def _python(name: str, module: str, *mounts: VolumeMount) -> Container:
    """Return a container that runs a module of the program, with the cache and `mounts`."""
    requests = facts().requests
    return bench_program.container(
        name=name,
        image=job_images().python.pinned,
        command=["python", "-B", "-m", module],
        workingDir=PROGRAM_FOLDER,
        resources={"requests": requests.model_dump(), "limits": {"memory": requests.memory}},
        volumeMounts=[
            {"name": "model-cache", "mountPath": CACHE_FOLDER},
            {"name": PROGRAM_VOLUME, "mountPath": f"{PROGRAM_FOLDER}/prewarm", "readOnly": True},
            *mounts,
        ],
    )


def adapters_volumes(cache: ModelCacheMountArgs) -> list[Volume]:
    """Return the volume with the list of a model's adapters; no volume if the cache names no ConfigMap with a list."""
    return [{"name": ADAPTERS_VOLUME, "configMap": {"name": cache["adapters"]}}] if "adapters" in cache else []


def program_volume() -> Volume:
    """Return the volume with the program that fills the cache."""
    return bench_program.files_volume(PROGRAM, PROGRAM_VOLUME)
