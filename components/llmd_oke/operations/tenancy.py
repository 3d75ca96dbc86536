"""What a look at a tenancy is about."""

from dataclasses import dataclass
from functools import cached_property

from llmd_oke.access.oci_client import OciClient
from llmd_oke.config import CreateCluster, GpuPool, Image, StackConfig
from llmd_oke.planning.pools import SYSTEM_POOL


@dataclass(frozen=True)
class Tenancy:
    """What is asked, and where the stack's cluster is or will be."""

    client: OciClient
    config: StackConfig
    cluster: CreateCluster

    @cached_property
    def availability_domains(self) -> tuple[str, ...]:
        """The region's availability domains, by their whole names: as the stack file gives them, or as OCI does.

        Raises:
            OciError: OCI doesn't tell.
        """
        if self.cluster.given.availability_domains:
            return tuple(self.cluster.given.availability_domains)
        found = self.client.get("identity", "/availabilityDomains", compartmentId=self.cluster.tenancy_id)
        return tuple(str(each["name"]) for each in found)

    @property
    def created_pools(self) -> list[tuple[int, GpuPool]]:
        """GPU pools that the stack creates, with their positions."""
        return [(i, pool) for i, pool in enumerate(self.config.gpu_pools) if pool.pool_id is None]

    @property
    def created_images(self) -> list[tuple[str, str, Image, str, str]]:
        """The images that pools boot from: pool, path in the stack file, image, the shape of the nodes, and their
        version of Kubernetes.
        """
        pools = [
            *((pool.name, f"gpuPools[{i}].image", pool) for i, pool in self.created_pools),
            (SYSTEM_POOL, "systemPool.image", self.config.system_pool),
            *((pool.name, f"cpuPools[{i}].image", pool) for i, pool in enumerate(self.config.cpu_pools)),
        ]
        own = self.cluster.kubernetes_version
        return [
            (name, path, pool.image, pool.shape, pool.kubernetes_version or own)
            for name, path, pool in pools
            if pool.image is not None
        ]
