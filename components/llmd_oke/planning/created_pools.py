"""Plans of a created cluster's pools, with all values that the stack file leaves out."""

from llmd_base.records import record

from llmd_oke.catalogue.cluster import eviction
from llmd_oke.config import CreateCluster, FileStorage, GpuPoolConfig, StackConfig, SystemPoolConfig
from llmd_oke.planning.cluster_plan import CpuPoolPlan, GpuPoolPlan, NodesPlan
from llmd_oke.planning.gpu_stack import gpu_stack
from llmd_oke.planning.network import max_pods_of
from llmd_oke.planning.pools import SYSTEM_POOL, planned_cycling

DECIDED = frozenset({"image", "scaling", "ready_timeout_minutes"})
"""Fields of a pool's stack-file entry that aren't passed unchanged to the pool component: image, scaling, and the time
that the gate waits for nodes.
"""


def planned_gpu_pool(config: StackConfig, cluster: CreateCluster, pool: GpuPoolConfig) -> GpuPoolPlan:
    """Return the plan of a GPU pool. With RDMA, the default Topology Manager policy gives pods GPUs and network devices
    of one socket if possible.
    """
    rdma = config.rdma == "sriov-vf"
    image, cycling = None if pool.pool_id else pool.image, planned_cycling(pool)
    return record(
        GpuPoolPlan,
        pool,
        cluster,
        kubernetes_version=pool.kubernetes_version or cluster.kubernetes_version,
        availability_domain=pool.availability_domain or "",
        fault_domains=pool.fault_domains or None,
        image_id=image and image.ocid,
        image_import=image and image.import_,
        labels={**dict(gpu_stack(config).node_labels), **pool.labels},
        topology_manager_policy=pool.topology_manager_policy or ("best-effort" if rdma else None),
        file_storage=isinstance(config.storage.model_cache, FileStorage),
        rdma_in_pods=rdma,
        agent_logs=config.sends_pod_logs,
        cycling=cycling,
        drain_minutes=eviction().minutes(pool.eviction_grace_minutes, cycling=cycling is not None),
        options=_options(pool, GpuPoolPlan),
    )


def planned_cpu_pool(cluster: CreateCluster, pool: SystemPoolConfig) -> CpuPoolPlan:
    """Return the plan of the system pool, which is never autoscaled and has no taints, or of another pool
    without GPUs.
    """
    image = pool.image
    return record(
        CpuPoolPlan,
        pool,
        {"name": SYSTEM_POOL, "taints": (), "autoscaled": False},
        cluster,
        kubernetes_version=pool.kubernetes_version or cluster.kubernetes_version,
        availability_domains=pool.availability_domains or cluster.lookup_results.availability_domains,
        image_id=image.ocid if image else cluster.lookup_results.system_image_id,
        image_import=image and image.import_,
        max_pods=max_pods_of(pool),
        cycling=planned_cycling(pool),
        options=_options(pool, CpuPoolPlan),
    )


def _options(pool: GpuPoolConfig | SystemPoolConfig, kind: type[NodesPlan]) -> dict[str, object]:
    """Return the options of a pool's component that are passed unchanged from the stack file."""
    decided = DECIDED | kind.__dataclass_fields__.keys()
    return {name: getattr(pool, name) for name in type(pool).model_fields if name not in decided}
