"""The stack file's one object, with what belongs to the whole stack: release, storage and smoke benchmark."""

from typing import Annotated, Literal

from llmd_pods.acceptance import CHECKS, CheckName
from pydantic import Field, StringConstraints

from llmd_oke.config.base import (
    Commit,
    ConfigPart,
    DnsLabel,
    Items,
    LabelKey,
    LabelValue,
    is_absent,
    is_none,
    matching,
)
from llmd_oke.config.cluster import Cluster, CreateCluster
from llmd_oke.config.front_door import FrontDoorConfig
from llmd_oke.config.gateway import Gateway
from llmd_oke.config.model import ModelConfig
from llmd_oke.config.network_policies import NetworkPolicies
from llmd_oke.config.pools import CpuPoolConfig, GpuPoolConfig, SystemPoolConfig
from llmd_oke.config.tags import Tags

Layer = Literal["cluster", "serving", "all"]
Rdma = Literal["sriov-vf", "none"]

GpuStack = Literal["helm-operator", "oke-plugin", "oke-operator-addon", "present"]
"""One choice, not switches: two owners of `amd.com/gpu` would take turns."""

QuantizedReduce = Literal["FP", "INT8", "INT6", "INT4"]
"""Number formats in which vLLM's quick all-reduce on ROCm sends less than BF16, and so changes answers."""

QuickReduceFormat = Literal["NONE", QuantizedReduce]
"""Values of `VLLM_ROCM_QUICK_REDUCE_QUANTIZATION`."""


class Override(ConfigPart):
    """Replacements of what the release has. Versions that llm-d has not released together are nobody's but yours to
    prove: plan, passport and reports show them.
    """

    router: str | None = None
    """Release whose endpoint picker, proxy and routing sidecar run in place of the release's own."""

    vllm_image: str | None = None
    """Image of vLLM, as registry/repository:tag, with @sha256:… behind it where it is to be pinned. Another release's,
    or a mirror of it, is started as that release starts it."""

    endpoint_picker_image: str | None = None
    """Image of the endpoint picker, of a version that reads the same config."""

    routing_sidecar_image: str | None = None
    """Image of the routing sidecar, of a version that knows the same flags."""

    proxy_image: str | None = None
    """Image of Envoy."""

    attention_backend: str | None = None
    """vLLM's `--attention-backend` for all servers, for example `ROCM_AITER_UNIFIED_ATTN`. Another than the release's
    changes answers, which the benchmark of each update then evaluates (`smoke.thresholds.minAccuracy`)."""

    quick_reduce: QuickReduceFormat | None = None
    """Number format of all-reduce between the GPUs of a server (`VLLM_ROCM_QUICK_REDUCE_QUANTIZATION`). All but `NONE`
    change answers, which the benchmark of each update then evaluates (`smoke.thresholds.minAccuracy`)."""

    def replacements(self) -> dict[str, str]:
        """Return what is replaced, by its field's name."""
        return self.model_dump(exclude_none=True)


FolderPath = Annotated[
    str,
    matching(
        r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$",
        "an absolute path of letters, digits, dots, dashes and underscores, without a slash at its end",
        max_length=255,
    ),
]
"""An absolute path without a slash at its end."""

IpAddress = Annotated[str, matching(r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$", "an IPv4 address")]
LustreName = Annotated[str, matching(r"^[a-z0-9]{1,8}$", "one to eight lower-case letters and digits")]

SMALLEST_LUSTRE_GB = 31_200
LustreTier = Literal["MBPS_PER_TB_125", "MBPS_PER_TB_250", "MBPS_PER_TB_500", "MBPS_PER_TB_1000"]


class NoModelCache(ConfigPart):
    """Every server downloads its weights into a folder of its own pod."""

    kind: Literal["none"]
    """`none`: no cache; weights are downloaded at each start of a server."""


class NodeDisk(ConfigPart):
    """A folder on each node's own disks, the fastest place for weights."""

    kind: Literal["node-disk"]
    """`node-disk`: the nodes' own NVMe disks."""

    path: FolderPath = "/mnt/nvme/models"
    """Folder on the nodes; it is made where it isn't there."""

    capacity_gib: Annotated[int, Field(ge=1)] | None = None
    """Room for weights on each node in GiB; half of the shape's NVMe disks (RAID 10) if left out."""

    compiled_code: Literal["none"] | FolderPath | None = None
    """Folder on the nodes for the code that servers compile as they start, so that the next start on a node finds it;
    `none` keeps none. If left out, the folder of weights with `-compiled` behind its name."""


class ExistingFileSystem(ConfigPart):
    """A File Storage file system that is there already."""

    file_system_id: Annotated[str, StringConstraints(min_length=1)]
    """OCID of the file system."""

    mount_target_ip: IpAddress
    """Address of its mount target."""

    export_path: FolderPath
    """Path of its export. User 65532 has to be able to write there: the export maps all users to the folder's owner
    (squash all), or the folder is that user's."""


class FileStorage(ConfigPart):
    """One OCI File Storage file system for all nodes. It grows by itself."""

    kind: Literal["file-storage"]
    """`file-storage`: OCI File Storage, over NFS."""

    existing: ExistingFileSystem | None = None
    """A file system that is there already; nothing is created then."""

    availability_domain: str | None = None
    """Availability domain of a file system to create, that of the GPU pools for example."""

    export_path: FolderPath = "/models"
    """Path of the export of a file system to create."""


class ExistingLustre(ConfigPart):
    """A Lustre file system that is there already."""

    management_ip: IpAddress
    """Address of its management service."""

    file_system_name: LustreName
    """Its Lustre name."""


class Lustre(ConfigPart):
    """One OCI File Storage with Lustre file system for all nodes."""

    kind: Literal["lustre"]
    """`lustre`: OCI File Storage with Lustre."""

    existing: ExistingLustre | None = None
    """A file system that is there already; nothing is created then."""

    availability_domain: str | None = None
    """Availability domain of a file system to create."""

    capacity_gb: Annotated[int, Field(ge=SMALLEST_LUSTRE_GB)] = SMALLEST_LUSTRE_GB
    """Size of a file system to create, or of the existing one, in GB."""

    performance_tier: LustreTier = "MBPS_PER_TB_125"
    """Throughput of a file system to create in MB/s for each TB."""


ModelCache = Annotated[NoModelCache | NodeDisk | FileStorage | Lustre, Field(discriminator="kind")]


class Prewarm(ConfigPart):
    """Download of weights into the cache before servers start, which then read nothing else."""

    source: Literal["hugging-face", "object-storage", "none"] = "hugging-face"
    """`hugging-face`: the model's repository. `object-storage`: a bucket that the pre-authenticated request in the
    secret `llmd-oke:modelSourceUrl` may list and read, with the files of each model under the name of its repository.
    `none`: the first server downloads what it needs.
    """

    revisions: dict[str, Commit] = Field(default_factory=dict[str, str])
    """Commits of repositories by the models' keys in the catalogue, which has commits of its own for Hugging Face. For
    `object-storage` it is the one that pre-warming names as it ends, made of names, sizes and checksums. Without any it
    is what lies there at the time of the download, which may differ between nodes that were filled on different days.
    """

    connections: Annotated[int, Field(ge=1, le=64)] = 8
    """Files that one download reads at a time."""

    timeout_s: Annotated[int, Field(ge=60, le=86_400)] = 7200
    """Longest that filling the cache with one model may take in seconds."""


class StorageConfig(ConfigPart):
    """Storage of a stack beside that of Kubernetes."""

    model_cache: ModelCache = NoModelCache(kind="none")
    """Where weights are kept."""

    prewarm: Prewarm = Prewarm()
    """How weights get there. It has no meaning without a cache."""


Milliseconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class SmokeThresholds(ConfigPart):
    """Thresholds of the smoke benchmark; a figure that is left out is not judged."""

    max_failures: Annotated[int, Field(ge=0)] = 0
    """Requests that may fail."""

    min_remote_prefill_share: Share = 0.95
    """Share of uncached prompts that prefill servers must have computed. Judged for disaggregated models behind a
    router only."""

    max_ttft_p95_ms: Milliseconds | None = None
    """95th percentile of the time to first token in milliseconds."""

    max_itl_p95_ms: Milliseconds | None = None
    """95th percentile of the inter-token latency in milliseconds."""

    max_e2e_p95_ms: Milliseconds | None = None
    """95th percentile of the whole request in milliseconds."""

    min_accuracy: Annotated[Share | None, Field(exclude_if=is_absent)] = None
    """Share of the kit's own questions with known answers (those of `llmd-oke eval`) that are answered right. If left
    out, they are asked only where something changes answers (`override.quickReduce`, another attention backend), and
    held against the kit's floor."""

    min_output_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    """Output tokens per second of the whole model."""


class Smoke(ConfigPart):
    """A short closed-loop benchmark of every model, with the lengths of its workload."""

    where: Literal["cluster", "client", "none"] = "cluster"
    """`cluster`: a Job is part of the deployment, runs when what it measures has changed, and fails the update where a
    threshold is missed. `client`: the command benchmarks from its own machine after each update. `none`: only
    `llmd-oke smoke` does."""

    requests: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Measured requests."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] = 8
    """Requests in flight."""

    timeout_s: Annotated[int, Field(ge=1)] = 600
    """Limit of the whole benchmark of one model in seconds."""

    thresholds: SmokeThresholds = SmokeThresholds()
    """What makes the benchmark, and with it the command, fail."""


class AcceptanceThresholds(ConfigPart):
    """Thresholds of nodes, in place of the shape's figures (`values/bench/acceptance.yaml`)."""

    min_link_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least rate of a read from GPU to GPU over one RDMA port, in GB (10^9 bytes) per second."""

    min_all_reduce_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least bus bandwidth of an all-reduce between all GPUs of two nodes, in GB per second."""

    min_memory_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least rate of a copy within a GPU's memory, what is read and what is written together, in GB per second."""

    min_matrix_tflops: Annotated[float, Field(gt=0)] | None = None
    """Least rate of matrix products of BF16 on a GPU, in 10^12 operations per second."""

    min_disk_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Least rate of reading the file system of a node's NVMe disks, in GB per second."""


class AcceptanceConfig(ConfigPart):
    """Acceptance of GPU nodes before models are served on them."""

    when: Literal["new-nodes", "by-command"] = "new-nodes"
    """`new-nodes`: each update tests the nodes of created pools that have not passed yet, before it goes on to models;
    `by-command`: only `llmd-oke accept` does. Pools that the cluster autoscaler sizes, and nodes that were there
    before, are tested by the command alone."""

    on_failure: Literal["spares", "hold"] = "spares"
    """What becomes of serving when nodes fail, which are tainted in any case. `spares`: it goes on where the other
    nodes of the pool suffice for the models; `hold`: it waits until all nodes pass."""

    checks: Annotated[Items[CheckName], Field(min_length=1)] = CHECKS
    """`gpus`: amd-smi sees all, without memory errors that can't be corrected; `memory` and `matrix-products`: each GPU
    copies its memory and multiplies matrices fast enough; `disks`: all NVMe disks are there, and read fast enough where
    they are a file system; `rdma`: all virtual functions are up,
    with the right GID and MTU; `locality`: each socket has as many ports as GPUs; `links`: reads from GPU to GPU of
    another node over each port; `all-reduce`: RCCL between all GPUs of two nodes."""

    thresholds: AcceptanceThresholds = AcceptanceThresholds()
    """What nodes must reach, where not what is published of the shape."""

    limit_minutes: Annotated[int, Field(ge=5, le=240)] = 60
    """Longest that the acceptance of a pool may take, in minutes, with the pull of vLLM's image."""


Monitoring = Literal["none", "existing", "install"]
LeaderWorkerSets = Literal["existing", "install"]


class CanariesConfig(ConfigPart):
    """Known prompts, greedy answers to which are held to the first ones of the model's servers."""

    every_seconds: Annotated[int, Field(ge=1, le=300)] = 30
    """Seconds from one prompt of each server to the next."""


class PrometheusConfig(ConfigPart):
    """The Prometheus of the cluster, with its operator."""

    url: Annotated[str, matching(r"^https?://[^\s/@]+(/[^\s@]*)?$", "an address that begins with http:// or https://")]
    """Address of its HTTP API, for example `http://prometheus-operated.llm-d-monitoring.svc.cluster.local:9090`. Inside
    the cluster it has to be in the namespace `llm-d-monitoring`: network policies let no other read metrics."""

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict[str, str])
    """Labels of monitors and rules, where it takes only those that have them (`release: kube-prometheus-stack` by
    default of that chart)."""


class Tracing(ConfigPart):
    """Target of traces of requests (OpenTelemetry, OTLP over gRPC)."""

    endpoint: Annotated[
        str, matching(r"^http://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}$", "http://, a host and a port")
    ]
    """Address of a collector that takes OTLP over gRPC without TLS, such as `http://otel-collector:4317`; a name
    without namespace is one of the stack's own. The endpoint picker speaks no TLS to it."""

    sampled_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the requests that are traced, of those that don't come with a decision of their client's."""


class RegistryMirrorConfig(ConfigPart):
    """A private registry with copies of every image and chart that the stack pulls (`llmd-oke images copy-list`)."""

    prefix: Annotated[
        str,
        matching(
            r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+|localhost)(:[0-9]{1,5})?"
            r"(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$",
            "a registry and a path in it, without https:// and without a slash at its end, such as"
            " iad.ocir.io/namespace/mirror",
            max_length=128,
        ),
    ]
    """Registry and path in it. The whole name of what is copied comes behind it: with `iad.ocir.io/ai/mirror`,
    `iad.ocir.io/ai/mirror/docker.io/library/python` is the copy of `docker.io/library/python`. What is in the same
    registry already is pulled from where it is."""

    pull_secret: (
        Annotated[
            str,
            matching(
                r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
                "the name of a Secret: lower-case letters, digits, dashes and dots",
                max_length=253,
            ),
        ]
        | None
    ) = None
    """Name of the Secret (`kubernetes.io/dockerconfigjson`) that all pods pull with; it has to be in each namespace.
    Left out where nodes sign in by themselves, as they do to OCI's registry with `cluster.iam.grants: ocir`."""


class StackConfig(ConfigPart):
    """Everything that one stack deploys. It stands under `llmd-oke:stack` in `stacks/Pulumi.<stack>.yaml`."""

    layer: Layer = "all"
    """What of it this stack deploys: `cluster`, network, cluster, pools and operators; `serving`, the models, into a
    cluster that is there; `all`, both. Each needs a way to the API server from where the update runs.
    """

    cluster: Cluster | None = None
    """The cluster to deploy to. Left out only where `clusterStack` says which."""

    cluster_stack: str | None = None
    """With `layer: serving`: the stack whose `layer: cluster` made the cluster, as organization/project/stack."""

    gpu_pools: Annotated[Items[GpuPoolConfig], Field(min_length=1)]
    """The pools of GPU nodes that the models are placed on."""

    system_pool: SystemPoolConfig = SystemPoolConfig()
    """The nodes of a created cluster that controllers and routers run on."""

    cpu_pools: Items[CpuPoolConfig] = ()
    """Further pools without GPUs of a created cluster."""

    gpu_stack: GpuStack | None = None
    """What gives nodes their `amd.com/gpu`. `helm-operator`: AMD's GPU operator from its chart, with OKE's own plug-in
    kept away. `oke-plugin`: OKE's add-on AmdGpuPlugin. `oke-operator-addon` (experimental): OKE's add-on
    AmdGpuOperator. `present`: it is there already. If left out, `helm-operator` for a cluster that is created and
    `present` for an existing one."""

    rdma: Rdma = "sriov-vf"
    """How pods reach the RDMA network: `sriov-vf`, one virtual function for each GPU of a prefill or decode server;
    `none`, no RDMA (one node only)."""

    release: str
    """llm-d release: the versions of endpoint picker, sidecar, charts, CRDs and vLLM that belong together, for example
    `llm-d-0.9.0`."""

    override: Annotated[Override | None, Field(exclude_if=is_absent)] = None
    """Parts of the release that are replaced by your own choice."""

    namespace: DnsLabel = "llm-d"
    """Namespace of all models of this stack."""

    acceptance: Annotated[AcceptanceConfig | None, Field(exclude_if=is_absent)] = None
    """What GPU nodes must show before models are served on them; all checks, on new nodes of created pools, if left
    out."""

    models: Annotated[Items[ModelConfig], Field(min_length=1)] = ()
    """The models to serve. Only `layer: cluster` can do without."""

    front_door: Annotated[FrontDoorConfig | None, Field(exclude_if=is_absent)] = None
    """One address for all models of this stack; each has only one of its own if left out."""

    gateway: Annotated[Gateway | None, Field(exclude_if=is_absent)] = None
    """The Gateway (Gateway API) that models with `router.mode: gateway` are behind; needed where there is one."""

    storage: StorageConfig = StorageConfig()
    """Where the weights of models are kept."""

    smoke: Smoke = Smoke()
    """The benchmark that runs after each update."""

    network_policies: Annotated[NetworkPolicies | None, Field(exclude_if=is_absent)] = None
    """What enforces the NetworkPolicies that the kit declares, and what they open beside the kit's own needs; nothing
    and nothing if left out."""

    monitoring: Annotated[Monitoring, Field(exclude_if=is_none)] = "none"
    """`install`: Prometheus, Grafana and exporters come with the cluster, from the chart kube-prometheus-stack.
    `existing`: a Prometheus with its operator is there. Both add monitors, rules, alerts and dashboards for what the
    stack deploys; `none` adds nothing."""

    canaries: Annotated[CanariesConfig | None, Field(exclude_if=is_absent)] = None
    """Known prompts that each server is asked all the time, with `monitoring`, whose alerts tell of answers that become
    others; none if left out, `{}` for the kit's."""

    prometheus: Annotated[PrometheusConfig | None, Field(exclude_if=is_absent)] = None
    """The Prometheus of `monitoring: existing`; that of the llm-d guides if left out."""

    leader_worker_sets: Annotated[LeaderWorkerSets, Field(exclude_if=lambda way: way == "existing")] = "existing"
    """The controller of LeaderWorkerSets, of which servers that span nodes are made. `existing`: it is in the cluster.
    `install`: it comes with the cluster, from its chart. Not beside another one: two would take turns."""

    tags: Annotated[Tags | None, Field(exclude_if=is_absent)] = None
    """Tags of what this stack creates in OCI, instances included, beside the kit's own; none if left out."""

    tracing: Annotated[Tracing | None, Field(exclude_if=is_absent)] = None
    """Where endpoint pickers, routing sidecars and vLLM send traces of requests; nowhere if left out."""

    registry_mirror: Annotated[RegistryMirrorConfig | None, Field(exclude_if=is_absent)] = None
    """Where images and charts are taken from in place of the registries that publish them; from those if left out."""

    @property
    def created_cluster(self) -> CreateCluster | None:
        """The cluster that this stack creates; None where it is there already or another stack's."""
        return self.cluster if isinstance(self.cluster, CreateCluster) and self.layer != "serving" else None
