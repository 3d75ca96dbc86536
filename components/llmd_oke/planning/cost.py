"""What a stack costs by the hour at list price, part by part, and what is not in the sum."""

from collections.abc import Iterator
from dataclasses import dataclass

from llmd_oke.catalogue import prices as catalogue_prices
from llmd_oke.config import CreateCluster, SystemPool
from llmd_oke.planning.plan import Plan


@dataclass(frozen=True)
class Cost:
    """One part of a stack and its list price in US dollars by the hour; None where no public price is known."""

    part: str
    usd_per_hour: float | None


@dataclass(frozen=True)
class Costs:
    """All parts, and in words what is not among them. List prices are no quotation."""

    parts: tuple[Cost, ...]
    not_included: tuple[str, ...]
    as_of: str

    @property
    def usd_per_hour(self) -> float:
        """The sum of all prices that are known."""
        return sum(part.usd_per_hour or 0.0 for part in self.parts)


def costs(plan: Plan) -> Costs:
    """What a plan costs: GPU nodes in any case, the rest where the stack creates it."""
    facts = catalogue_prices.prices()
    parts = [Cost(f"{pool.name}: {pool.size} x {pool.shape.name}", pool.price_usd_per_hour) for pool in plan.pools]
    created = isinstance(plan.cluster, CreateCluster) and plan.layer != "serving"
    if created:
        parts += [*_cpu_pools(plan), _boot_volumes(plan), Cost("OKE cluster", facts.enhanced_cluster_usd_per_hour)]
    unknown = [f"{part.part}: no public price in the catalogue" for part in parts if part.usd_per_hour is None]
    scaled = [
        f"{pool.name}: nodes that the cluster autoscaler adds, up to {pool.limits.most}"
        for pool in (*plan.config.gpu_pools, *plan.config.cpu_pools)
        if pool.limits.most > pool.size
    ]
    there = [] if created else ["whatever of the cluster is there already, but for its GPU nodes"]
    return Costs(tuple(parts), (*unknown, *scaled, *there, *facts.not_included), facts.as_of)


def _cpu_pools(plan: Plan) -> Iterator[Cost]:
    pools = {"system": plan.config.system_pool, **{pool.name: pool for pool in plan.config.cpu_pools}}
    for name, pool in pools.items():
        size = f"{pool.ocpus:g} OCPUs, {pool.memory_gib:g} GB" if pool.shape.endswith(".Flex") else "whole"
        yield Cost(f"{name}: {pool.size} x {pool.shape} ({size})", _of_cpu_pool(pool))


def _of_cpu_pool(pool: SystemPool) -> float | None:
    price = catalogue_prices.prices().flexible_shapes.get(pool.shape)
    if price is None:
        return None
    return pool.size * (pool.ocpus * price.usd_per_ocpu_hour + pool.memory_gib * price.usd_per_gb_hour)


def _boot_volumes(plan: Plan) -> Cost:
    """Those of all nodes that the stack creates."""
    facts = catalogue_prices.prices()
    wanted = [(pool.size * pool.boot_volume_gib, None) for pool in (plan.config.system_pool, *plan.config.cpu_pools)]
    wanted += [
        (pool.size * pool.boot_volume_gib, pool.boot_volume_vpus_per_gb)
        for pool in plan.config.gpu_pools
        if pool.pool_id is None
    ]
    by_month = sum(gb * facts.block_volume.usd_per_gb_month_at(vpus) for gb, vpus in wanted)
    return Cost(f"boot volumes: {sum(gb for gb, _ in wanted):,} GB", by_month / facts.hours_per_month)
