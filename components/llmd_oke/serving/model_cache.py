"""The cache of weights inside the cluster: its volume, and the Jobs that fill it before servers start."""

from typing import Any, NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue import Model, Shape
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.catalogue.storage import model_cache as facts
from llmd_oke.errors import KitError
from llmd_oke.objects import PART_OF, Manifest, when_declared
from llmd_oke.planning import rollout
from llmd_oke.serving import prewarm, vllm
from llmd_oke.serving.args import NodeTaintArgs
from llmd_oke.serving.cache_args import ModelCacheMountArgs, PrewarmArgs
from llmd_oke.serving.lookup import model, shape
from llmd_oke.serving.manifests import declare
from llmd_oke.serving.model_pod import tolerations
from llmd_oke.serving.timeouts import timeouts

DEFAULT_TIMEOUT_S = 7200
VOLUME_S = 300
TRIES = 6
PREWARM = "llmd-oke/prewarm"


class ModelCacheArgs(TypedDict):
    """What a model cache needs."""

    namespace: pulumi.Input[str]
    """Namespace of the model servers."""
    service_account: pulumi.Input[str]
    """Account of the pods that fill the cache. It needs no rights."""
    kind: str
    """`node-disk`, `file-storage` or `lustre`."""
    shape: str
    """OCI shape of the nodes, from the catalogue."""
    node_taints: NotRequired[list[NodeTaintArgs]]
    """Taints of the nodes beside those of their shape; none if left out."""
    nodes: int
    """Number of nodes."""
    models: list[str]
    """Models of the catalogue to keep."""
    path: NotRequired[str]
    """Folder on the nodes, for `node-disk`; `/mnt/nvme/models` if left out."""
    volume_handle: NotRequired[pulumi.Input[str]]
    """What the storage driver knows the file system by, for `file-storage` and `lustre`."""
    volume_name: NotRequired[str]
    """Name of the shared volume, which belongs to no namespace; the component's name if left out."""
    capacity_gib: NotRequired[int]
    """Size of a shared file system in GiB; File Storage grows by itself."""
    prewarm: NotRequired[PrewarmArgs]
    """How weights get there; servers download them themselves if left out."""
    revisions: NotRequired[dict[str, str]]
    """Commits of repositories by model; they win over the one of `prewarm`."""
    source_url: NotRequired[pulumi.Input[str]]
    """Pre-authenticated request that may list and read a bucket, for the source `object-storage`; kept as a Secret."""
    timeout_s: NotRequired[int]
    """Longest that filling the cache with one model may take in seconds; 7200 if left out."""


class ModelCache(pulumi.ComponentResource):
    """A folder on each node's disks or one volume for all nodes, filled with the weights of models.

    Declare units after it: it is ready when all weights are there.
    """

    claim: pulumi.Output[str]
    """Name of the claim of a shared volume; empty for `node-disk`."""
    jobs: pulumi.Output[list[str]]
    """Names of the Jobs that filled the cache."""

    def __init__(self, name: str, args: ModelCacheArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelCache", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.claim = self._shared_volume(name, args) if args["kind"] != "node-disk" else pulumi.Output.from_input("")
        needed: list[pulumi.Resource] = []
        if "prewarm" in args:
            program = prewarm.program_config_map(args["namespace"])
            needed.append(declare(f"{name}-program", program, child))
        if "source_url" in args:
            needed.append(declare(f"{name}-source", source_secret(args["namespace"], args["source_url"]), child))
        self.jobs = pulumi.Output.all(*(self._job(name, key, args, needed) for key in _prewarmed(args)))
        self.register_outputs({"claim": self.claim, "jobs": self.jobs})

    def _shared_volume(self, name: str, args: ModelCacheArgs) -> pulumi.Output[str]:
        limited = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(VOLUME_S), delete_before_replace=True)
        volume = declare(f"{name}-volume", persistent_volume(name, args), limited)
        after = pulumi.ResourceOptions.merge(limited, pulumi.ResourceOptions(depends_on=[volume]))
        return when_declared(declare(f"{name}-claim", claim(name, args), after), name)

    def _job(self, name: str, key: str, args: ModelCacheArgs, needed: list[pulumi.Resource]) -> pulumi.Output[str]:
        limit_s = args.get("timeout_s", DEFAULT_TIMEOUT_S)
        opts = pulumi.ResourceOptions(
            parent=self,
            depends_on=needed,
            custom_timeouts=timeouts(limit_s + rollout.SCHEDULING_S),
            delete_before_replace=True,
        )
        manifest = job(model(key), shape(args["shape"]), args, mount(args, key, self.claim))
        return when_declared(declare(f"{name}-{manifest['metadata']['name']}", manifest, opts), job_name(model(key)))


def mount(args: ModelCacheArgs, model_name: str, claim: pulumi.Input[str]) -> ModelCacheMountArgs:
    """What the servers of a model are told of the cache: the argument `model_cache` of their unit."""
    place: ModelCacheMountArgs = {"path": args.get("path", "/mnt/nvme/models")}
    if args["kind"] != "node-disk":
        place = {"claim": claim}
    if "prewarm" not in args:
        return place
    wanted = args["prewarm"]
    how: PrewarmArgs = {
        "source": wanted["source"],
        "connections": wanted.get("connections", 8),
        "belongs_to_root": args["kind"] != "file-storage",
    }
    if revision := args.get("revisions", {}).get(model_name) or wanted.get("revision"):
        how["revision"] = revision
    place["prewarm"] = how
    return place


def persistent_volume(name: str, args: ModelCacheArgs) -> Manifest:
    """The volume of a file system that is there already. It stays when the claim goes: weights are worth keeping.

    Raises:
        KitError: the kind has no driver, or the file system is not named.
    """
    if args["kind"] not in {"file-storage", "lustre"}:
        raise KitError(f"{args['kind']!r} is no kind of model cache.", "Known: node-disk, file-storage, lustre.")
    if "volume_handle" not in args:
        raise KitError(f"A model cache of the kind {args['kind']} needs volume_handle.")
    driver = facts().file_storage if args["kind"] == "file-storage" else facts().lustre
    attributes = facts().lustre.volume_attributes if args["kind"] == "lustre" else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": args.get("volume_name", name), "labels": PART_OF},
        "spec": {
            "capacity": {"storage": _capacity(args)},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "mountOptions": list(driver.mount_options),
            "claimRef": {"namespace": args["namespace"], "name": name},
            "csi": {
                "driver": driver.driver,
                "volumeHandle": args["volume_handle"],
                **({"volumeAttributes": attributes} if attributes else {}),
            },
        },
    }


def claim(name: str, args: ModelCacheArgs) -> Manifest:
    """The claim of the volume, by name; no storage class takes part."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": args["namespace"], "labels": PART_OF},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": args.get("volume_name", name),
            "resources": {"requests": {"storage": _capacity(args)}},
        },
    }


def job(kept: Model, nodes: Shape, args: ModelCacheArgs, cache: ModelCacheMountArgs) -> dict[str, Any]:
    """The Job that fills the cache with one model: a pod for each node and its disks, or one for a shared volume."""
    pods = args["nodes"] if args["kind"] == "node-disk" else 1
    own = {**PART_OF, PREWARM: job_name(kept)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(kept),
            "namespace": args["namespace"],
            "labels": own,
            "annotations": {"pulumi.com/replaceUnready": "true"},
        },
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": TRIES * pods,
            "activeDeadlineSeconds": args.get("timeout_s", DEFAULT_TIMEOUT_S),
            "template": {"metadata": {"labels": own}, "spec": _pod(kept, nodes, args, cache)},
        },
    }


def job_name(kept: Model) -> str:
    """The name of the Job of a model."""
    return f"prewarm-{kept.name.replace('.', '-')}"


def source_secret(namespace: pulumi.Input[str], url: pulumi.Input[str]) -> Manifest:
    """The Secret with the pre-authenticated request of a bucket."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": prewarm.SOURCE_SECRET, "namespace": namespace, "labels": PART_OF},
        "stringData": {prewarm.SOURCE_SECRET_KEY: pulumi.Output.secret(url)},
    }


def _pod(kept: Model, nodes: Shape, args: ModelCacheArgs, cache: ModelCacheMountArgs) -> dict[str, Any]:
    *first, fills = prewarm.containers(kept, cache)
    return {
        "serviceAccountName": args["service_account"],
        "automountServiceAccountToken": False,
        "restartPolicy": "OnFailure",
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": {INSTANCE_TYPE_LABEL: nodes.name},
        "tolerations": tolerations(nodes, args.get("node_taints", ())),
        **({"affinity": _apart(kept)} if args["kind"] == "node-disk" else {}),
        **({"initContainers": first} if first else {}),
        "containers": [fills],
        "volumes": [vllm.cache_volume(cache), prewarm.program_volume()],
    }


def _apart(kept: Model) -> dict[str, Any]:
    """Each pod on a node of its own."""
    term = {
        "labelSelector": {"matchLabels": {PREWARM: job_name(kept)}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _prewarmed(args: ModelCacheArgs) -> list[str]:
    return sorted(set(args["models"])) if "prewarm" in args else []


def _capacity(args: ModelCacheArgs) -> str:
    return f"{args.get('capacity_gib', facts().file_storage.smallest_claim_gib)}Gi"
