"""Planner: makes the plan of a stack from its config, or reports all problems."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import InvalidStack, Problem
from llmd_base.records import record
from llmd_bench.deployment import Parallelism

from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.catalogue.cluster import IMAGES
from llmd_oke.catalogue.container_images import LOCK, project_lock
from llmd_oke.catalogue.endpoint_pickers import ENDPOINT_PICKERS
from llmd_oke.catalogue.entries import ProjectEntry, origin
from llmd_oke.catalogue.models import MODELS, host_key_value_tokens
from llmd_oke.catalogue.operations import PRICES
from llmd_oke.catalogue.project import LATENCY, project_problems
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.catalogue.releases import RELEASES
from llmd_oke.catalogue.server_settings import server_settings
from llmd_oke.catalogue.shapes import GPUS, SHAPES
from llmd_oke.config import (
    CreateCluster,
    ModelConfig,
    Role,
    StackConfig,
    locate,
    read,
    validate,
)
from llmd_oke.config.deprecated_keys import with_current_keys
from llmd_oke.planning import checks, placement
from llmd_oke.planning.acceptance import pool_acceptance
from llmd_oke.planning.advice import advice
from llmd_oke.planning.cluster_plan import ClusterPlan
from llmd_oke.planning.container_images import images_of
from llmd_oke.planning.created_pools import planned_cpu_pool, planned_gpu_pool
from llmd_oke.planning.flow_control import flow_control, holds_back, priorities
from llmd_oke.planning.front_door import front_door
from llmd_oke.planning.gateway import gateway, provider_limit_problems
from llmd_oke.planning.gpu_stack import add_ons, gpu_stack, virtual_functions_owner
from llmd_oke.planning.iam import planned_iam
from llmd_oke.planning.model_plan import ModelPlan, PlacedNode, PlannedPool, RolePlan, Rollout, UnitPlan, UpdateWay
from llmd_oke.planning.models import answer_changes
from llmd_oke.planning.monitoring import monitoring, tracing
from llmd_oke.planning.network import control_plane_cidrs, planned_network
from llmd_oke.planning.network_policies import network_policies
from llmd_oke.planning.oci_monitoring import planned_oci_monitoring
from llmd_oke.planning.placement import empty_nodes, place, servers, unit_names, virtual_functions
from llmd_oke.planning.plan import Advice, Plan
from llmd_oke.planning.planned_model import PlannedModel, memory
from llmd_oke.planning.pools import autoscaled_pools, autoscaler_add_on
from llmd_oke.planning.releases import (
    pull_problems,
    reports_kv_cache,
    router_of,
    router_profile,
    router_replicas,
    session_headers,
    used_override,
    used_release,
    with_router,
)
from llmd_oke.planning.storage import created_storage, download_limit_s, model_cache
from llmd_oke.planning.tags import planned_tags


def plan_stack_file(project: Path, stack: str, router: str | None = None, *, nodes_pull: bool = False) -> Plan:
    """Return the plan of a stack's file. `router` is the release whose router runs, None for the stack file's own
    choice. `nodes_pull` tells whether real nodes pull the images, so that images that can't be pulled are problems.

    Raises:
        KitError: the stack file doesn't exist, or is not YAML.
        InvalidStack: the stack can't be deployed; contains all problems, with lines.
    """
    try:
        written = plan_object(read(project, stack), nodes_pull=nodes_pull)
    except InvalidStack as refused:
        raise InvalidStack(locate(refused.problems, project, stack)) from refused
    return plan(with_router(written.config, router)) if router else written


def plan_object(value: Any, *, nodes_pull: bool = False) -> Plan:
    """Return the plan of the object `llmd-oke:stack`; `nodes_pull` as for `plan_stack_file`.

    Raises:
        InvalidStack: the stack can't be deployed; contains all problems.
    """
    try:
        config = validate(value)
    except InvalidStack as refused:
        others = project_problems() or _problems_of_other_parts(value, refused.problems)
        raise InvalidStack([*refused.problems, *others]) from refused
    planned = plan(config, nodes_pull=nodes_pull)
    _, replaced, _ = with_current_keys(value)
    return replace(planned, advice=(*(Advice(item.path, str(item)) for item in replaced), *planned.advice))


def plan(config: StackConfig, *, nodes_pull: bool = False) -> Plan:
    """Return the plan of a config. With `nodes_pull`, real nodes pull the images: images that can't be pulled, and
    settings that a Gateway's provider doesn't support, are then problems.

    Raises:
        InvalidStack: the stack can't be deployed; contains all problems.
    """
    real = [*pull_problems(config), *provider_limit_problems(config)] if nodes_pull else []
    problems = project_problems() or [*checks.problems(config), *real]
    if problems:
        raise InvalidStack(problems)
    pools = checks.pools(config)
    nodes, _ = place(servers(config, config.models), empty_nodes(pools))
    room = _Room(config, pools, nodes)
    release, cidrs, mirror = used_release(config), control_plane_cidrs(config), config.registry_mirror
    assert release is not None  # noqa: S101 - the checks have looked
    draft = Plan(
        config=config,
        cluster=config.cluster,
        namespace=config.namespace,
        pools=pools,
        rdma=config.rdma == "sriov-vf",
        release=release,
        override=used_override(config),
        router_release=router_of(config),
        models=tuple(_model(context, room, release) for context in checks.model_contexts(config).values()),
        nodes=tuple(nodes),
        model_cache=model_cache(config),
        smoke=config.smoke,
        virtual_functions_owner=virtual_functions_owner(config),
        gpu_stack=gpu_stack(config),
        created=None if config.created_cluster is None else _cluster(config, config.created_cluster),
        control_plane_cidrs=None if cidrs is None else tuple(cidrs),
        network_policies=network_policies(config),
        front_door=front_door(config),
        gateway=gateway(config),
        acceptance=pool_acceptance(config, pools, nodes),
        monitoring=monitoring(config, pools),
        tracing=tracing(config),
        registry_mirror=None if mirror is None else MirrorRegistry(mirror.prefix, mirror.pull_secret),
        tags=planned_tags(config),
        advice=(),
        project_entries=(),
    )
    return replace(draft, advice=advice(draft), project_entries=project_entries(draft))


def _cluster(config: StackConfig, cluster: CreateCluster) -> ClusterPlan:
    policy, network = cluster.image_policy, planned_network(config, cluster)
    public, flannel = network.choices.public_endpoint, network.choices.flannel
    return record(
        ClusterPlan,
        cluster,
        cluster.lookup_results,
        cluster_name=cluster.name,
        public_api=public,
        flannel=flannel,
        pods_cidr=cluster.pods_cidr if flannel else None,
        image_policy_key_ids=None if policy is None else policy.kms_key_ids,
        tags=planned_tags(config),
        network=network,
        iam=planned_iam(config, cluster),
        gpu_pools=tuple(planned_gpu_pool(config, cluster, pool) for pool in config.gpu_pools),
        cpu_pools=tuple(planned_cpu_pool(cluster, pool) for pool in (config.system_pool, *config.cpu_pools)),
        add_ons=tuple(add_ons(config, cluster)),
        storage=created_storage(config),
        autoscaler=autoscaler_add_on(config) if autoscaled_pools(config) else None,
        budget=config.budget,
        oci_monitoring=planned_oci_monitoring(config),
    )


@dataclass(frozen=True)
class _Room:
    """Spare capacity of the nodes besides all servers. Units and roles may roll at the same time: each has an equal
    share.
    """

    config: StackConfig
    pools: tuple[PlannedPool, ...]
    nodes: list[PlacedNode]

    def surges(self, role: Role, spread: Parallelism) -> int:
        """Return the number of further servers of a role that are sure to fit; 0 if the autoscaler changes the
        nodes.
        """
        if any(pool.autoscaled for pool in self.pools):
            return 0
        size = spread.gpus_per_node
        pods = self._surges(sum(node.free_gpus for node in self.nodes), size)
        if virtual_functions(self.config, role, spread):
            pods = min(pods, self._surges(sum(node.free_virtual_functions for node in self.nodes), size))
        in_several_pools = spread.nodes > 1 and len(self.pools) > 1
        return 0 if in_several_pools else pods // spread.nodes

    def update_way(self, model: ModelConfig) -> UpdateWay:
        """Return the strategy by which new servers of a model replace old ones."""
        if model.router.mode == "none":
            return "rolling"
        if not any(pool.autoscaled for pool in self.pools) and placement.room_beside(self.nodes):
            return "beside"
        if not model.topology.disaggregated:
            return "rolling"
        return "outage" if model.copies == 1 else "one by one"

    def _surges(self, spare: int, size: int) -> int:
        parts = sum(len(model.topology.servers()) * model.copies for model in self.config.models)
        others = sum(bool(server.gpus % size) for node in self.nodes for server in node.servers)
        mixed_nodes = min(len(self.nodes), 2 * others)  # others may exist twice during their own rollout
        return placement.sure_room(spare // parts, size, mixed_nodes)


def _model(context: PlannedModel, room: _Room, release: catalogue.Release) -> ModelPlan:
    model, facts = context.model, context.facts
    roles = tuple(_role(role, context, room, release) for role in model.topology.servers())
    return record(
        ModelPlan,
        model,
        name=model.object_name,
        model=facts,
        profile=router_profile(model, release.endpoint_picker.dialect),
        router_replicas=router_replicas(model, release),
        units=tuple(UnitPlan(name, roles) for name in unit_names(model)),
        update_way=room.update_way(model),
        answer_changes=tuple(answer_changes(context)),
        min_accuracy=checks.min_accuracy(context),
        flow_control=flow_control(room.config, model),
        holds_back=holds_back(model, release.endpoint_picker.dialect),
        priorities=priorities(room.config),
        session_headers=session_headers(model, release.endpoint_picker.dialect),
        kv_events=reports_kv_cache(model, release.endpoint_picker.dialect),
    )


def _role(role: Role, context: PlannedModel, room: _Room, release: catalogue.Release) -> RolePlan:
    model, facts, part = context.model, context.facts, context.model.topology.servers()[role]
    spread, rdma = context.parallelism(role), room.config.rdma == "sriov-vf"
    settings = server_settings(release, facts, model.engine, role, spread, rdma=rdma)
    rollout = _rollout(role, context, room)
    download_s = download_limit_s(room.config)
    return RolePlan(
        settings=settings,
        replicas=part.replicas,
        memory=memory(facts, context.shape, spread, settings.gpu_memory_utilization, settings.adapters, settings.draft),
        rollout=rollout,
        startup_budget_s=facts.startup_budget_s,
        create_timeout_s=placement.create_timeout_s(facts.startup_budget_s, download_s),
        update_timeout_s=placement.update_timeout_s(
            facts.startup_budget_s, model.most_replicas(role), rollout, download_s
        ),
        scaling=model.scaling.servers().get(role) if model.scaling else None,
        host_key_value_tokens=host_key_value_tokens(facts, spread, settings.host_memory_gib, settings.draft),
        disk_key_value_tokens=host_key_value_tokens(facts, spread, settings.disk_gib, settings.draft),
    )


def _rollout(role: Role, context: PlannedModel, room: _Room) -> Rollout:
    """Return the rolling update of a role's servers. Roles of a DisaggregatedSet without room for both roles' further
    servers are replaced in equal steps.
    """
    servers = context.model.topology.servers()
    surges = {name: room.surges(name, context.parallelism(name)) for name in servers}
    if context.model.disaggregated_set and not all(surges.values()):
        steps = min(part.replicas for part in servers.values())
        return Rollout(max_surge=0, max_unavailable=-(-servers[role].replicas // steps))
    return placement.rollout(servers[role].replicas, surges[role])


def _problems_of_other_parts(value: Any, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems in meaning of those parts of the object that have valid keys and types; none that only follow
    from an invalid part.
    """
    if not isinstance(value, dict):
        return []
    wrong = {_part(problem.path) for problem in problems}
    config = _with_placeholders(cast("dict[str, Any]", value), wrong)
    return [problem for problem in checks.problems_of_parts(config) if _part(problem.path) not in wrong]


def _part(path: str) -> str:
    """Return the part of the stack file that a path is in: one model or pool (`models[0]`), or a top-level key."""
    return path.partition(".")[0]


def _with_placeholders(value: dict[str, Any], wrong: set[str]) -> StackConfig:
    """Return the config with a valid placeholder for each part with wrong keys or types."""

    def part(key: str, default: object) -> Any:
        return default if key in wrong else value.get(key, default)

    pools, models = part("gpuPools", []), part("models", [])
    shapes = [pool["shape"] for i, pool in enumerate(pools) if f"gpuPools[{i}]" not in wrong]
    pool = {"shape": (shapes or catalogue.shape_names())[0], "size": 1}
    known = (item for name in catalogue.model_names() if (item := catalogue.model(name)))
    model = {
        "model": min(known, key=lambda item: item.weights.gib).name,
        "topology": "agg-tp1-1r",
        "workload": {"inputTokens": 1, "outputTokens": 1},
    }
    cluster, given = {"mode": "existing", "identifier": "placeholder"}, value.get("cluster")
    owner = cast("dict[str, object]", given).get("virtualFunctions") if isinstance(given, dict) else None
    if isinstance(owner, str) and owner in operators.rdma().names:  # checks of other keys depend on it
        cluster["virtualFunctions"] = owner
    placeholder: dict[str, Any] = {
        "cluster": cluster,
        "release": part("release", catalogue.default_release().name),
        "override": part("override", None),
        "rdma": part("rdma", "sriov-vf") if "rdma" not in wrong else "none",
        "gpuPools": _replaced(pools, "gpuPools", wrong, pool),
        "models": _replaced(models, "models", wrong, model),
    }
    return validate({**placeholder, **_of_cluster(value, wrong)})


def _replaced(items: list[Any], key: str, wrong: set[str], placeholder: dict[str, Any]) -> list[Any]:
    """Return the items of a list with a placeholder for each invalid one; one placeholder if the list is empty."""
    named = [{"name": f"placeholder-{i}", **placeholder} for i in range(max(1, len(items)))]
    return [named[i] if f"{key}[{i}]" in wrong else item for i, item in enumerate(items)] or named


def _of_cluster(value: dict[str, Any], wrong: set[str]) -> dict[str, Any]:
    """Return the cluster and the parts that are checked against it; empty if the cluster itself has wrong keys or
    types.
    """
    if not isinstance(value.get("cluster"), dict) or wrong & {"cluster", "rdma", "layer"}:
        return {}
    parts = {key: value[key] for key in ("cluster", "systemPool", "gpuStack") if key in value and key not in wrong}
    pools: list[Any] = value.get("cpuPools", []) if "cpuPools" not in wrong else []
    return {**parts, "cpuPools": _replaced(pools, "cpuPools", wrong, {}) if pools else []}


def project_entries(plan: Plan) -> tuple[ProjectEntry, ...]:
    """Return the project's own catalogue entries that a plan and its forecasts use, without repetitions."""
    origins = (origin(folder, name) for folder, name in dict.fromkeys(_used(plan)))
    return tuple(item for item in origins if item is not None)


def _used(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield folder and name of all catalogue entries that a plan uses."""
    gpus = dict.fromkeys(pool.shape.gpu.product for pool in plan.pools)
    for model in plan.models:
        yield MODELS.folder, model.model.name
        yield from ((f"{LATENCY}/{gpu}", model.model.name) for gpu in gpus)
    yield from ((SHAPES.folder, pool.shape.name) for pool in plan.pools)
    yield from ((GPUS.folder, gpu) for gpu in gpus)
    yield from ((RELEASES.folder, name) for name in (plan.config.release, plan.router_release))
    yield ENDPOINT_PICKERS.folder, plan.release.endpoint_picker.program.version
    imports = (pool.image.import_ for pool in plan.config.gpu_pools if pool.image)
    yield from ((IMAGES.folder, item.name) for item in imports if item)
    own_digests = project_lock().images
    if any(used.image.reference in own_digests for used in images_of(plan)):
        yield LOCK.folder, "lock"
    yield PRICES.folder, "oci"
