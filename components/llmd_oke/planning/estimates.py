"""Estimates of a stack's cost per hour at list price, and of the time from `up` to the first token."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from llmd_oke.catalogue.container_images import lock
from llmd_oke.catalogue.operations import SourcedDuration, bring_up_facts, prices
from llmd_oke.config import NoModelCache
from llmd_oke.planning.plan import Plan

ASSUMED = "assumed"
"""Text that is given as the source of figures without a published one."""

BYTES_PER_GIB = 2**30


@dataclass(frozen=True)
class Cost:
    """Part of a stack, such as a pool, and its list price in US dollars per hour; None if no public price is known."""

    part: str
    usd_per_hour: float | None


@dataclass(frozen=True)
class Costs:
    """List prices of all parts of a stack, and descriptions of costs that are not included."""

    parts: tuple[Cost, ...]
    not_included: tuple[str, ...]
    as_of: str

    @property
    def usd_per_hour(self) -> float:
        """Sum of the known list prices of the stack's parts in US dollars per hour."""
        return sum(part.usd_per_hour or 0.0 for part in self.parts)


def costs(plan: Plan) -> Costs:
    """Return the costs of a plan: of the GPU nodes, and, if the stack creates the cluster, of the other resources."""
    facts = prices()
    parts = [Cost(f"{pool.name}: {pool.size} x {pool.shape.name}", pool.price_usd_per_hour) for pool in plan.pools]
    created = plan.config.created_cluster is not None
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
        price = prices().flexible_shapes.get(pool.shape)
        of_pool = (
            pool.size * (pool.ocpus * price.usd_per_ocpu_hour + pool.memory_gib * price.usd_per_gb_hour)
            if price
            else None
        )
        yield Cost(f"{name}: {pool.size} x {pool.shape} ({size})", of_pool)


def _boot_volumes(plan: Plan) -> Cost:
    """Return the cost of the boot volumes of all nodes that the stack creates."""
    facts = prices()
    volumes = [(pool.size * pool.boot_volume_gib, None) for pool in (plan.config.system_pool, *plan.config.cpu_pools)]
    volumes += [
        (pool.size * pool.boot_volume_gib, pool.boot_volume_vpus_per_gb)
        for pool in plan.config.gpu_pools
        if pool.pool_id is None
    ]
    by_month = sum(gb * facts.block_volume.usd_per_gb_month_at(vpus) for gb, vpus in volumes)
    return Cost(f"boot volumes: {sum(gb for gb, _ in volumes):,} GB", by_month / facts.hours_per_month)


@dataclass(frozen=True)
class Leg:
    """Step of a stack's bring-up, which begins when all steps in `after` have ended; `source` says where its duration
    comes from.
    """

    name: str
    seconds: float
    source: str
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class BringUp:
    """Steps by which a new stack is brought up, each listed after those that it waits for."""

    legs: tuple[Leg, ...]

    @property
    def seconds(self) -> float:
        """Time in seconds from the start of the bring-up to the end of its last step."""
        return max(self._ends().values(), default=0.0)

    @property
    def starts(self) -> dict[str, float]:
        """Time in seconds from the start of the bring-up at which each step starts, by name."""
        ends = self._ends()
        return {leg.name: ends[leg.name] - leg.seconds for leg in self.legs}

    @property
    def critical(self) -> tuple[str, ...]:
        """Names of the steps on the critical path: shortening one of them by a second shortens the bring-up by a
        second.
        """
        ends, legs = self._ends(), {leg.name: leg for leg in self.legs}
        name = max(ends, key=lambda leg: ends[leg], default=None)
        path: list[str] = []
        while name is not None:
            path.append(name)
            name = max(legs[name].after, key=lambda leg: ends[leg], default=None)
        return tuple(reversed(path))

    def _ends(self) -> dict[str, float]:
        ends: dict[str, float] = {}
        for leg in self.legs:
            ends[leg.name] = max((ends[name] for name in leg.after), default=0.0) + leg.seconds
        return ends


def bring_up(plan: Plan) -> BringUp:
    """Return the bring-up of a new stack up to the first token, or, for a stack without models, up to a cluster with
    its GPUs.

    Existing nodes are assumed to have neither vLLM's image nor weights.
    """
    legs = list(_cluster_legs(plan))
    if plan.layer != "cluster":
        legs += _serving_legs(plan, tuple(leg.name for leg in legs[-1:]))
    return BringUp(tuple(legs))


def _cluster_legs(plan: Plan) -> Iterator[Leg]:
    """Yield the steps of a cluster's bring-up; models wait for the last of them."""
    facts, cluster = bring_up_facts(), plan.config.created_cluster
    if cluster is None:
        return
    before: tuple[str, ...] = ()
    if cluster.network.vcn_id is None:
        yield _fixed("network", facts.network)
        before = ("network",)
    if cluster.cluster_id is None:
        yield _fixed("control plane", facts.control_plane, *before)
        before = ("control plane",)
    yield _fixed("system nodes", facts.system_nodes, *before)
    yield _fixed("GPU nodes", facts.gpu_nodes, "system nodes")
    nodes = ("GPU nodes",)
    if plan.gpu_stack.components:
        yield _fixed("operators", facts.operators, "system nodes")
        nodes = ("GPU nodes", "operators")
    yield _fixed("GPUs and RDMA on nodes", facts.devices, *nodes)
    if any(accepted.in_update for accepted in plan.acceptance):
        image = _image_pull(plan, ("GPUs and RDMA on nodes",))
        yield image
        yield _fixed("acceptance of GPU nodes", facts.acceptance, image.name)


def _serving_legs(plan: Plan, before: tuple[str, ...]) -> Iterator[Leg]:
    facts = bring_up_facts()
    pulled = any(accepted.in_update for accepted in plan.acceptance)
    image = _image_pull(plan, before)
    cached = not isinstance(plan.config.storage.model_cache, NoModelCache)
    prewarmed = cached and plan.config.storage.prewarm.source != "none"
    weights = _weights(plan, before if prewarmed else (image.name,), prewarmed=prewarmed)
    yield from (() if pulled else (image,))
    yield weights
    if start := server_start(plan):
        yield Leg("server start", start.first_s, start.source, (image.name, weights.name))
    ready = ["server start"]
    if any(model.routed for model in plan.models):
        yield _fixed("router", facts.router, *before)
        ready.append("router")
    yield _fixed("first request", facts.first_request, *ready)


@dataclass(frozen=True)
class ServerStartForecast:
    """Duration in seconds of the start of a server of the largest model with its weights and image on the node: of the
    first server on a node, and of later ones, which are faster only if compiled code is kept.
    """

    first_s: float
    again_s: float
    source: str


def server_start(plan: Plan) -> ServerStartForecast | None:
    """Return the forecast of a server's start; None if the stack has no servers."""
    if not plan.models:
        return None
    start = bring_up_facts().server_start
    largest = max(model.model.weights.gib for model in plan.models) * BYTES_PER_GIB
    first_s = largest / (start.read_megabytes_per_s * 1e6) + start.seconds
    kept = plan.model_cache is not None and plan.model_cache.compiled_path is not None
    return ServerStartForecast(first_s, first_s - (start.compiling_seconds if kept else 0), start.source or ASSUMED)


def _image_pull(plan: Plan, after: tuple[str, ...]) -> Leg:
    """Return the step of pulling vLLM's image; the size in the lock is preferred to the catalogue's figure."""
    facts = bring_up_facts().image
    locked = lock().images.get(plan.release.vllm.image.reference)
    size = locked.download_bytes if locked else None
    seconds = (size or facts.gigabytes * 1e9) / (facts.megabytes_per_s * 1e6)
    return Leg("vLLM image", seconds, facts.source or ASSUMED, after)


def _weights(plan: Plan, after: tuple[str, ...], *, prewarmed: bool) -> Leg:
    """Return the step of downloading weights. Downloads of one node share its rate: one per model into a cache, or one
    per server without a cache.
    """
    facts, prewarm = bring_up_facts().weights, plan.config.storage.prewarm
    rate = facts.object_storage if prewarmed and prewarm.source == "object-storage" else facts.hugging_face
    by_unit = {unit.name: model for model in plan.models for unit in model.units}
    if prewarmed:
        gib = sum({model.model.name: model.model.files_gib(model.settings.draft) for model in plan.models}.values())
    else:
        servers = (Counter(by_unit[server.unit].name for server in node.servers) for node in plan.nodes_at_first)
        sizes = {model.name: model.model.files_gib(model.settings.draft) for model in by_unit.values()}
        gib = max((sum(sizes[name] * count for name, count in node.items()) for node in servers), default=0.0)
    seconds = gib * BYTES_PER_GIB / (rate.megabytes_per_s * 1e6)
    return Leg("weights", seconds, rate.source or ASSUMED, after)


def _fixed(name: str, duration: SourcedDuration, *after: str) -> Leg:
    return Leg(name, duration.seconds, duration.source or ASSUMED, after)
