"""Root object of the stack file, with the parts that concern the whole stack: release, storage, smoke benchmark,
acceptance and monitoring.
"""

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
    matching,
)
from llmd_oke.config.budget import BudgetConfig
from llmd_oke.config.cluster import Cluster, CreateCluster
from llmd_oke.config.front_door import FrontDoorConfig
from llmd_oke.config.gateway import Gateway
from llmd_oke.config.model import ModelConfig
from llmd_oke.config.network_policies import NetworkPolicies
from llmd_oke.config.oci_monitoring import OciMonitoringConfig
from llmd_oke.config.pools import CpuPoolConfig, GpuPoolConfig, SystemPoolConfig
from llmd_oke.config.tags import Tags

Layer = Literal["cluster", "serving", "all"]
Rdma = Literal["sriov-vf", "none"]

GpuStack = Literal["helm-operator", "oke-plugin", "oke-operator-addon", "present"]
"""Installer of the GPU device plugin. It is one choice rather than several switches: two installed device plugins would
both register `amd.com/gpu` and conflict.
"""

QuantizedReduce = Literal["FP", "INT8", "INT6", "INT4"]
"""Number formats to which vLLM's quick all-reduce on ROCm quantizes BF16 before sending; all of them change answers."""

QuickReduceFormat = Literal["NONE", QuantizedReduce]
"""Values of `VLLM_ROCM_QUICK_REDUCE_QUANTIZATION`."""


class Override(ConfigPart):
    """Replacements for parts of the release. llm-d hasn't tested the resulting combination of versions; plan, passport
    and reports show every replacement.
    """

    router: str | None = None
    """Release whose endpoint picker, proxy and routing sidecar run in place of this release's."""

    vllm_image: str | None = None
    """Image of vLLM, as registry/repository:tag, optionally pinned by @sha256:…. The image of another release, or a
    mirrored copy of it, is started with that release's arguments.
    """

    endpoint_picker_image: str | None = None
    """Image of the endpoint picker, of a version that reads the same config."""

    routing_sidecar_image: str | None = None
    """Image of the routing sidecar, of a version that has the same flags."""

    proxy_image: str | None = None
    """Image of Envoy."""

    attention_backend: str | None = None
    """vLLM's `--attention-backend` for all servers, for example `ROCM_AITER_UNIFIED_ATTN`. A backend other than the
    release's changes answers: the benchmark after each update then evaluates them (`smoke.thresholds.minAccuracy`).
    """

    quick_reduce: QuickReduceFormat | None = None
    """Number format of all-reduce between the GPUs of a server (`VLLM_ROCM_QUICK_REDUCE_QUANTIZATION`). All formats but
    `NONE` change answers: the benchmark after each update then evaluates them (`smoke.thresholds.minAccuracy`).
    """

    def replacements(self) -> dict[str, str]:
        """Return the replacements that are set, by field name."""
        return self.model_dump(exclude_none=True)


FolderPath = Annotated[
    str,
    matching(
        r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$",
        "an absolute path such as /mnt/models: no part begins with a dot, no slash at the end",
        max_length=255,
    ),
]
"""Absolute path without a slash at its end."""

IpAddress = Annotated[str, matching(r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$", "an IPv4 address")]
LustreName = Annotated[str, matching(r"^[a-z0-9]{1,8}$", "one to eight lower-case letters and digits")]

SMALLEST_LUSTRE_GB = 31_200
LustreTier = Literal["MBPS_PER_TB_125", "MBPS_PER_TB_250", "MBPS_PER_TB_500", "MBPS_PER_TB_1000"]


class NoModelCache(ConfigPart):
    """No cache: every server downloads the weights into a volume of its own pod."""

    kind: Literal["none"]
    """`none`: no cache; each server downloads the weights when it starts."""


class NodeDisk(ConfigPart):
    """Cache in a directory on each node's local disks, which read weights fastest."""

    kind: Literal["node-disk"]
    """`node-disk`: the nodes' local NVMe disks."""

    path: FolderPath = "/mnt/nvme/models"
    """Directory on the nodes; it is created if missing."""

    capacity_gib: Annotated[int, Field(ge=1)] | None = None
    """Space for weights on each node in GiB; if left out, half of the shape's NVMe capacity (RAID 10)."""

    compiled_code: Literal["none"] | FolderPath | None = None
    """Directory on the nodes for code that vLLM compiles at startup, so that the next server on the node reuses it;
    `none` disables this. If left out, the directory for weights with the suffix `-compiled`.
    """


class ExistingFileSystem(ConfigPart):
    """File Storage file system that already exists."""

    file_system_id: Annotated[str, StringConstraints(min_length=1)]
    """OCID of the file system."""

    mount_target_ip: IpAddress
    """IP address of the mount target."""

    export_path: FolderPath
    """Path of the export. User 65532 must be able to write to it: either the export maps all users to the directory's
    owner (squash all), or that user owns the directory.
    """


class FileStorage(ConfigPart):
    """Cache on one OCI File Storage file system that all nodes mount. Its capacity grows automatically."""

    kind: Literal["file-storage"]
    """`file-storage`: OCI File Storage, over NFS."""

    existing: ExistingFileSystem | None = None
    """File system that already exists; none is created then."""

    availability_domain: str | None = None
    """Availability domain of the file system to create, for example that of the GPU pools."""

    export_path: FolderPath = "/models"
    """Export path of the file system to create."""


class ExistingLustre(ConfigPart):
    """Lustre file system that already exists."""

    management_ip: IpAddress
    """IP address of the file system's management service (MGS)."""

    file_system_name: LustreName
    """Lustre name of the file system."""


class Lustre(ConfigPart):
    """Cache on one OCI File Storage with Lustre file system that all nodes mount."""

    kind: Literal["lustre"]
    """`lustre`: OCI File Storage with Lustre."""

    existing: ExistingLustre | None = None
    """File system that already exists; none is created then."""

    availability_domain: str | None = None
    """Availability domain of the file system to create."""

    capacity_gb: Annotated[int, Field(ge=SMALLEST_LUSTRE_GB)] = SMALLEST_LUSTRE_GB
    """Capacity in GB of the file system to create, or of the existing one."""

    performance_tier: LustreTier = "MBPS_PER_TB_125"
    """Throughput of the file system to create, in MB/s per TB of capacity."""


ModelCache = Annotated[NoModelCache | NodeDisk | FileStorage | Lustre, Field(discriminator="kind")]


class Prewarm(ConfigPart):
    """Download of weights into the model cache before servers start. The servers then read weights only from
    the cache.
    """

    source: Literal["hugging-face", "object-storage", "none"] = "hugging-face"
    """Origin of the weights. `hugging-face`: the model's repository. `object-storage`: a bucket whose pre-authenticated
    request, in the secret `llmd-oke:modelSourceUrl`, permits listing and reading; the prefix of each model's files is
    the name of its repository. `none`: no pre-warming; the first server downloads the weights.
    """

    revisions: dict[str, Commit] = Field(default_factory=dict[str, str])
    """Commits of the models' repositories, by the name of the model in the catalogue; for Hugging Face the catalogue
    has default commits. For `object-storage`, the revision is the one that pre-warming prints when it ends, computed
    from names, sizes and checksums of the files. Without a revision, the files in the bucket at the time of the
    download are used, which may differ between nodes that were filled on different days.
    """

    connections: Annotated[int, Field(ge=1, le=64)] = 8
    """Number of files that one download reads in parallel."""

    timeout_s: Annotated[int, Field(ge=60, le=86_400)] = 7200
    """Maximum duration in seconds of filling the cache with one model."""


class StorageConfig(ConfigPart):
    """Storage for weights."""

    model_cache: ModelCache = NoModelCache(kind="none")
    """Cache of the models' weights."""

    prewarm: Prewarm = Prewarm()
    """Download of weights into the cache. It has no effect with a cache of kind `none`."""


Milliseconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class SmokeThresholds(ConfigPart):
    """Thresholds of the smoke benchmark; a metric without a threshold is not judged."""

    max_failures: Annotated[int, Field(ge=0)] = 0
    """Maximum number of failed requests."""

    min_remote_prefill_share: Share = 0.95
    """Minimum share of uncached prompts that prefill servers computed (0.95 is 95 %). Judged only for disaggregated
    models behind a router.
    """

    max_ttft_p95_ms: Milliseconds | None = None
    """Maximum 95th percentile of the time to first token in milliseconds."""

    max_itl_p95_ms: Milliseconds | None = None
    """Maximum 95th percentile of the inter-token latency in milliseconds."""

    max_e2e_p95_ms: Milliseconds | None = None
    """Maximum 95th percentile of the duration of a whole request in milliseconds."""

    min_accuracy: Annotated[Share | None, Field(exclude_if=is_absent)] = None
    """Minimum share of right answers (0.9 is 90 %) to the kit's questions with known answers (those of `llmd-oke
    eval`). If left out, the questions are asked only where a setting changes answers (`override.quickReduce`, another
    attention backend), and the kit's default minimum applies.
    """

    min_output_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    """Minimum output tokens per second of the whole model."""


class Smoke(ConfigPart):
    """Short closed-loop benchmark of every model, with the prompt and output lengths of its workload."""

    where: Literal["cluster", "client", "none"] = "cluster"
    """Program that runs the benchmark. `cluster`: a Job of the deployment, which runs when something that it measures
    has changed, and fails the update if a threshold is missed. `client`: the command `llmd-oke` itself, on the machine
    it runs on, after each update. `none`: no benchmark after updates; only `llmd-oke smoke` runs one.
    """

    requests: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Number of measured requests."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] = 8
    """Number of requests in flight."""

    timeout_s: Annotated[int, Field(ge=1)] = 600
    """Maximum duration in seconds of the benchmark of one model."""

    thresholds: SmokeThresholds = SmokeThresholds()
    """Thresholds at which the benchmark fails, and the command with it."""


class AcceptanceThresholds(ConfigPart):
    """Thresholds for GPU nodes, in place of the defaults for their shape (`values/bench/acceptance.yaml`)."""

    min_link_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Minimum rate of reads from GPU to GPU over one RDMA port, in GB (10^9 bytes) per second."""

    min_all_reduce_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Minimum bus bandwidth of an all-reduce between all GPUs of two nodes, in GB (10^9 bytes) per second."""

    min_memory_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Minimum rate of a copy within one GPU's memory, bytes read plus bytes written, in GB (10^9 bytes) per second."""

    min_matrix_tflops: Annotated[float, Field(gt=0)] | None = None
    """Minimum rate of BF16 matrix products on one GPU, in TFLOPS (10^12 operations per second)."""

    min_disk_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """Minimum rate of reads from the file system on a node's NVMe disks, in GB (10^9 bytes) per second."""


class AcceptanceConfig(ConfigPart):
    """Acceptance test of GPU nodes before models are served on them."""

    when: Literal["new-nodes", "by-command"] = "new-nodes"
    """Event that starts the test. `new-nodes`: each update tests the nodes of created pools that haven't passed yet,
    before it deploys models. `by-command`: only `llmd-oke accept` tests nodes. Pools that the cluster autoscaler sizes,
    and existing nodes, are always tested by the command only.
    """

    on_failure: Literal["spares", "hold"] = "spares"
    """Effect of failed nodes on serving; failed nodes are tainted in any case. `spares`: models are deployed if the
    pool's other nodes suffice; `hold`: models are not deployed until all nodes pass.
    """

    checks: Annotated[Items[CheckName], Field(min_length=1)] = CHECKS
    """Checks to run. `gpus`: amd-smi lists all GPUs, without uncorrectable memory errors. `memory` and
    `matrix-products`: each GPU copies memory and multiplies matrices fast enough. `disks`: all NVMe disks are present,
    and fast enough where they have a file system. `rdma`: all virtual functions are up, with the right GID and MTU.
    `locality`: each socket has as many ports as GPUs. `links`: reads between GPUs of different nodes over each port.
    `all-reduce`: RCCL between all GPUs of two nodes.
    """

    thresholds: AcceptanceThresholds = AcceptanceThresholds()
    """Thresholds for the nodes; a threshold that is left out has the default for the shape."""

    limit_minutes: Annotated[int, Field(ge=5, le=240)] = 60
    """Maximum duration in minutes of the acceptance test of one pool, including the pull of vLLM's image."""


Monitoring = Literal["none", "existing", "install"]
LeaderWorkerSets = Literal["existing", "install"]


class CanariesConfig(ConfigPart):
    """Probe of each server with known prompts: the greedy answers are compared with the first answers of the model's
    servers.
    """

    every_seconds: Annotated[int, Field(ge=1, le=300)] = 30
    """Interval in seconds between two prompts to the same server."""


class PrometheusConfig(ConfigPart):
    """Existing Prometheus of the cluster, with the Prometheus Operator."""

    url: Annotated[str, matching(r"^https?://[^\s/@]+(/[^\s@]*)?$", "an address that begins with http:// or https://")]
    """URL of Prometheus' HTTP API, for example `http://prometheus-operated.llm-d-monitoring.svc.cluster.local:9090`. A
    Prometheus inside the cluster must be in the namespace `llm-d-monitoring`: network policies let no other namespace
    read metrics.
    """

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict[str, str])
    """Labels for monitors and rules, if Prometheus selects them by label (`release: kube-prometheus-stack` by default
    of that chart).
    """


class Tracing(ConfigPart):
    """Export of request traces (OpenTelemetry, OTLP over gRPC)."""

    endpoint: Annotated[
        str, matching(r"^http://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[0-9]{1,5}$", "http://, a host and a port")
    ]
    """URL of a collector that accepts OTLP over gRPC without TLS, such as `http://otel-collector:4317`; a host name
    without namespace is resolved in the stack's own namespace. The endpoint picker doesn't support TLS to the
    collector.
    """

    sampled_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of requests to trace (0.1 is 10 %), out of those whose client sends no sampling decision."""


class RegistryMirrorConfig(ConfigPart):
    """Private registry with copies of every image and chart that the stack pulls (`llmd-oke images copy-list`)."""

    prefix: Annotated[
        str,
        matching(
            r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+|localhost)(:[0-9]{1,5})?"
            r"(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$",
            'a registry and a path in lower case, without https://, tag, digest, ".." or final slash, such as'
            " iad.ocir.io/namespace/mirror",
            max_length=128,
        ),
    ]
    """Registry and path prefix of the copies, followed by the full name of the original: with `iad.ocir.io/ai/mirror`,
    `iad.ocir.io/ai/mirror/docker.io/library/python` is the copy of `docker.io/library/python`. Images whose original is
    in the same registry are pulled from the original.
    """

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
    """Name of the image pull Secret (`kubernetes.io/dockerconfigjson`) of all pods; it must exist in each namespace.
    Not needed where nodes authenticate by themselves, as with `cluster.iam.grants: ocir` to OCI's registry.
    """


class StackConfig(ConfigPart):
    """Everything that one stack deploys: the value of `llmd-oke:stack` in `stacks/Pulumi.<stack>.yaml`."""

    layer: Layer = "all"
    """Part of the stack file that this stack deploys: `cluster`, the network, cluster, pools and operators; `serving`,
    the models, into an existing cluster; `all`, both. Each layer needs access to the API server from the machine that
    runs the update.
    """

    cluster: Cluster | None = None
    """Cluster to deploy to; needed unless `clusterStack` names the stack of the cluster."""

    cluster_stack: str | None = None
    """With `layer: serving`: stack with `layer: cluster` that created the cluster, as organization/project/stack."""

    gpu_pools: Annotated[Items[GpuPoolConfig], Field(min_length=1)]
    """Pools of GPU nodes for the models."""

    system_pool: SystemPoolConfig = SystemPoolConfig()
    """Nodes of a created cluster for controllers and routers."""

    cpu_pools: Items[CpuPoolConfig] = ()
    """Additional pools without GPUs in a created cluster."""

    gpu_stack: GpuStack | None = None
    """Installer of the device plugin that offers `amd.com/gpu`. `helm-operator`: AMD's GPU operator from its Helm
    chart, with OKE's own plug-in disabled. `oke-plugin`: OKE's add-on AmdGpuPlugin. `oke-operator-addon`
    (experimental): OKE's add-on AmdGpuOperator. `present`: a device plugin is already installed. If left out,
    `helm-operator` for a created cluster and `present` for an existing one.
    """

    rdma: Rdma = "sriov-vf"
    """Access of pods to the RDMA network: `sriov-vf`, one virtual function for each GPU of a prefill or decode server;
    `none`, no RDMA (one node only).
    """

    release: str
    """llm-d release, which fixes the versions of endpoint picker, sidecar, charts, CRDs and vLLM, for example
    `llm-d-0.9.0`.
    """

    override: Annotated[Override | None, Field(exclude_if=is_absent)] = None
    """Replacements for parts of the release."""

    namespace: DnsLabel = "llm-d"
    """Namespace of all models of this stack."""

    acceptance: Annotated[AcceptanceConfig | None, Field(exclude_if=is_absent)] = None
    """Acceptance test that GPU nodes must pass before models are served on them; if left out, all checks on new nodes
    of created pools.
    """

    models: Annotated[Items[ModelConfig], Field(min_length=1)] = ()
    """Models to serve; may be empty only with `layer: cluster`."""

    front_door: Annotated[FrontDoorConfig | None, Field(exclude_if=is_absent)] = None
    """One address for all models of this stack; if left out, each model has only its own address."""

    gateway: Annotated[Gateway | None, Field(exclude_if=is_absent)] = None
    """Gateway (Gateway API) for models with `router.mode: gateway`; needed if there is such a model."""

    storage: StorageConfig = StorageConfig()
    """Cache for the models' weights."""

    smoke: Smoke = Smoke()
    """Benchmark that runs after each update."""

    network_policies: Annotated[NetworkPolicies | None, Field(exclude_if=is_absent)] = None
    """Engine that enforces the NetworkPolicies that the kit declares, and additional destinations of pods; if left out,
    no engine is installed and no destinations are added.
    """

    monitoring: Annotated[Monitoring, Field(exclude_if=lambda value: value == "none")] = "none"
    """Prometheus and what it collects. `install`: Prometheus, Grafana and exporters are installed with the cluster,
    from the chart kube-prometheus-stack. `existing`: a Prometheus with its operator is already installed. Both add
    monitors, rules, alerts and dashboards for the deployed models; `none` adds nothing.
    """

    canaries: Annotated[CanariesConfig | None, Field(exclude_if=is_absent)] = None
    """Known prompts that are sent to each server continuously, with `monitoring`; alerts fire when answers change. None
    if left out; `{}` for the defaults.
    """

    prometheus: Annotated[PrometheusConfig | None, Field(exclude_if=is_absent)] = None
    """Prometheus of `monitoring: existing`; that of the llm-d guides if left out."""

    leader_worker_sets: Annotated[LeaderWorkerSets, Field(exclude_if=lambda way: way == "existing")] = "existing"
    """Origin of the LeaderWorkerSet controller, which runs servers that span nodes and those of DisaggregatedSets.
    `existing`: the cluster has one already. `install`: it is installed with the cluster, from its chart; never beside
    another one, as both would act on the same objects.
    """

    tags: Annotated[Tags | None, Field(exclude_if=is_absent)] = None
    """Tags for the resources that this stack creates in OCI, instances included, besides the kit's own tag; none if
    left out.
    """

    budget: Annotated[BudgetConfig | None, Field(exclude_if=is_absent)] = None
    """A budget of OCI with alerts by mail for the compartment of a created cluster; none if left out."""

    oci_monitoring: Annotated[OciMonitoringConfig | None, Field(exclude_if=is_absent)] = None
    """Alarms of OCI Monitoring with their notifications, and the log of the control plane in OCI Logging, for a created
    cluster; none if left out.
    """

    tracing: Annotated[Tracing | None, Field(exclude_if=is_absent)] = None
    """Export of request traces from endpoint pickers, routing sidecars and vLLM; none if left out."""

    registry_mirror: Annotated[RegistryMirrorConfig | None, Field(exclude_if=is_absent)] = None
    """Registry from which images and charts are pulled in place of their public registries; the public registries if
    left out.
    """

    @property
    def sends_pod_logs(self) -> bool:
        """True if nodes of a created cluster send the output of pods to OCI Logging."""
        logs = self.oci_monitoring.logs if self.oci_monitoring else None
        return self.created_cluster is not None and logs is not None and logs.pods

    @property
    def created_cluster(self) -> CreateCluster | None:
        """Cluster that this stack creates; None if the cluster exists already or another stack creates it."""
        return self.cluster if isinstance(self.cluster, CreateCluster) and self.layer != "serving" else None
