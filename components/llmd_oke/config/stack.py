"""The stack file's one object."""

from typing import Annotated, Literal

from pydantic import Field

from llmd_oke.config.base import Items, Part, is_absent
from llmd_oke.config.cluster import Cluster
from llmd_oke.config.gpu_pool import GpuPool
from llmd_oke.config.gpu_stack import GpuStack
from llmd_oke.config.model import Model
from llmd_oke.config.names import DnsLabel
from llmd_oke.config.node_pools import CpuPool, SystemPool
from llmd_oke.config.smoke import Smoke
from llmd_oke.config.storage import Storage

Layer = Literal["cluster", "serving", "all"]
Rdma = Literal["sriov-vf", "none"]

QuantizedReduce = Literal["FP", "INT8", "INT6", "INT4"]
"""Number formats in which vLLM's quick all-reduce on ROCm sends less than BF16, and so changes answers."""

QuickReduceFormat = Literal["NONE", QuantizedReduce]
"""Values of `VLLM_ROCM_QUICK_REDUCE_QUANTIZATION`."""


class Override(Part):
    """What of the release is replaced. Versions that llm-d has not released together are nobody's but yours to prove:
    plan, passport and reports show them.
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


class StackConfig(Part):
    """Everything that one stack deploys. It stands under `llmd-oke:stack` in `stacks/Pulumi.<stack>.yaml`."""

    layer: Layer = "all"
    """What of it this stack deploys: `cluster`, network, cluster, pools and operators; `serving`, the models, into a
    cluster that is there; `all`, both. Each needs a way to the API server from where the update runs.
    """

    cluster: Cluster | None = None
    """The cluster to deploy to. Left out only where `clusterStack` says which."""

    cluster_stack: str | None = None
    """With `layer: serving`: the stack whose `layer: cluster` made the cluster, as organization/project/stack."""

    gpu_pools: Annotated[Items[GpuPool], Field(min_length=1)]
    """The pools of GPU nodes that the models are placed on."""

    system_pool: SystemPool = SystemPool()
    """The nodes of a created cluster that controllers and routers run on."""

    cpu_pools: Items[CpuPool] = ()
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

    models: Annotated[Items[Model], Field(min_length=1)] = ()
    """The models to serve. Only `layer: cluster` can do without."""

    storage: Storage = Storage()
    """Where the weights of models are kept."""

    smoke: Smoke = Smoke()
    """The benchmark that runs after each update."""
