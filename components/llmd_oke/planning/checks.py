"""All checks of a stack, which report all problems at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from llmd_base.errors import SET, Described, KitError, Problem
from llmd_base.records import record

from llmd_oke import catalogue
from llmd_oke.catalogue import operators
from llmd_oke.catalogue.benchmarks import BUILTIN, evals
from llmd_oke.config import CreateCluster, ModelConfig, StackConfig
from llmd_oke.config.base import DNS_LABEL_FORM, DNS_LABEL_LENGTH, is_dns_label
from llmd_oke.config.cluster import KUBECONFIG_CREDENTIALS, read_kubeconfig
from llmd_oke.config.shape_problems import did_you_mean
from llmd_oke.planning.acceptance import acceptance_problems
from llmd_oke.planning.adapters import adapter_name_problems
from llmd_oke.planning.budget import budget_problems
from llmd_oke.planning.front_door import front_door_problems
from llmd_oke.planning.gateway import gateway_problems
from llmd_oke.planning.gpu_stack import (
    add_on_problems,
    gpu_stack_problems,
    registration_problems,
    virtual_functions_owner,
)
from llmd_oke.planning.iam import iam_problems
from llmd_oke.planning.model_plan import PlacedServer, PlannedPool
from llmd_oke.planning.model_scaling import room_problems
from llmd_oke.planning.models import answer_changes, other_problems, topology_problems
from llmd_oke.planning.monitoring import monitoring_problems, tracing_problems
from llmd_oke.planning.network import network_problems
from llmd_oke.planning.network_policies import network_policy_problems
from llmd_oke.planning.oci_monitoring import oci_monitoring_problems
from llmd_oke.planning.placement import (
    empty_nodes,
    lacks_virtual_functions,
    place,
    place_at_first,
    router_problems,
    servers,
    unit_names,
)
from llmd_oke.planning.planned_model import PlannedModel
from llmd_oke.planning.pools import availability_domain_problems, node_scaling_problems, pool_problems
from llmd_oke.planning.releases import release_problems
from llmd_oke.planning.storage import pod_disk_gib, pod_disk_problems, storage_problems
from llmd_oke.planning.tags import tag_problems


def problems(config: StackConfig) -> list[Problem]:
    """Return all problems of a stack."""
    of_topologies = topology_problems_by_model(config)
    placeable = [model for i, model in enumerate(config.models) if not of_topologies.get(i)]
    return [*_problems_of_parts(config, of_topologies), *_capacity(config, placeable), *router_problems(config)]


def problems_of_parts(config: StackConfig) -> list[Problem]:
    """Return the problems of each key of a stack that can be checked without placing servers on nodes."""
    return _problems_of_parts(config, topology_problems_by_model(config))


def _problems_of_parts(config: StackConfig, of_topologies: Mapping[int, list[Problem]]) -> list[Problem]:
    of_models = [
        problem
        for i, context in model_contexts(config).items()
        for problem in (*of_topologies[i], *other_problems(context))
    ]
    return [
        *layer_problems(config),
        *_names(config),
        *adapter_name_problems(config),
        *release_problems(config),
        *_shapes(config),
        *network_problems(config),
        *network_policy_problems(config),
        *iam_problems(config),
        *pool_problems(config),
        *availability_domain_problems(config),
        *node_scaling_problems(config),
        *registration_problems(config),
        *add_on_problems(config),
        *gpu_stack_problems(config),
        *storage_problems(config),
        *front_door_problems(config),
        *gateway_problems(config),
        *tracing_problems(config),
        *acceptance_problems(config),
        *monitoring_problems(config),
        *tag_problems(config),
        *budget_problems(config),
        *oci_monitoring_problems(config),
        *of_models,
        *_evaluation_problems(config),
    ]


def layer_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for each key of the stack file that the stack's `layer` doesn't use, or needs and lacks."""
    cluster = config.cluster
    if config.layer == "serving":
        if isinstance(cluster, CreateCluster):
            why = "the serving layer creates no cluster; the stack of the cluster layer does"
            yield Problem("cluster.mode", "create", "clusterStack in place of cluster, or mode existing", why)
        elif cluster is None and config.cluster_stack is None:
            why = "the serving layer must know which cluster it deploys to"
            yield Problem("clusterStack", None, "the stack of the cluster layer, or a cluster of mode existing", why)
        elif cluster is not None and config.cluster_stack is not None:
            why = "cluster says it already"
            yield Problem("clusterStack", config.cluster_stack, "either cluster or clusterStack", why)
    else:
        if cluster is None:
            yield Problem("cluster", None, "a cluster of mode existing or create", "the key is missing")
        if config.cluster_stack is not None:
            why = f"layer {config.layer} has the cluster in its own stack"
            yield Problem("clusterStack", config.cluster_stack, "nothing, or layer: serving", why)
        if isinstance(cluster, CreateCluster) and cluster.lookup_results.kubeconfig is not None:
            yield from _kubeconfig(cluster.lookup_results.kubeconfig)
    if config.layer == "cluster" and config.models:
        names = [model.object_name for model in config.models]
        yield Problem("models", names, "nothing, or layer: all", "the cluster layer deploys no models")
    if config.layer != "cluster" and not config.models:
        yield Problem("models", None, "a list: The models to serve", "the key is missing")


def _kubeconfig(text: str) -> Iterator[Problem]:
    """Yield the problems of a kubeconfig. Its text is never shown, because it may contain credentials."""
    path, accepted = "cluster.lookupResults.kubeconfig", "the kubeconfig that OKE gives for the cluster, as text"
    try:
        user = read_kubeconfig(text).user
    except KitError:
        why = "it is no kubeconfig with a cluster's https:// address, its authority and a user"
        yield Problem(path, SET, accepted, why)
        return
    if keys := sorted(KUBECONFIG_CREDENTIALS & set(user)):
        why = "whoever reads the stack file could use them, and the kit signs in by itself"
        accepted = f"{accepted}, whose user asks a program (exec)"
        yield Problem(path, Described(f"credentials: {', '.join(keys)}"), accepted, why)


def topology_problems_by_model(config: StackConfig) -> dict[int, list[Problem]]:
    """Return the problems of each model's servers, by index in the stack file's `models`; models and shapes that aren't
    in the catalogue are left out.
    """
    return {i: list(topology_problems(context)) for i, context in model_contexts(config).items()}


def pools(config: StackConfig) -> tuple[PlannedPool, ...]:
    """Return the plans of the GPU pools whose shape is in the catalogue."""
    shapes = ((pool, catalogue.shape(pool.shape)) for pool in config.gpu_pools)
    owner = virtual_functions_owner(config)
    return tuple(
        record(
            PlannedPool,
            pool,
            shape=operators.with_function_names(shape, owner),
            pod_disk_gib=pod_disk_gib(pool),
            exists=pool.pool_id is not None,
            ready_timeout_s=pool.ready_timeout_minutes * 60,
        )
        for pool, shape in shapes
        if shape is not None
    )


def model_contexts(config: StackConfig) -> dict[int, PlannedModel]:
    """Return the models of a stack that are in the catalogue, by index in the stack file's `models`. All of a stack's
    GPU pools have one shape: the first one that is in the catalogue is used for all models.
    """
    known_pools = pools(config)
    return {
        i: PlannedModel(config, model, f"models[{i}]", facts, known_pools[0].shape)
        for i, model in enumerate(config.models)
        if known_pools and (facts := catalogue.model(model.model)) is not None
    }


def min_accuracy(context: PlannedModel) -> float | None:
    """Return the minimum share of right answers that a model must give in its smoke benchmark: the stack file's, or the
    kit's default if a setting changes answers; None if no questions are asked, or there is no default for the model.
    """
    threshold = context.stack.smoke.thresholds.min_accuracy
    return _floor(context) if threshold is None and any(answer_changes(context)) else threshold


def _floor(context: PlannedModel) -> float | None:
    floor = evals().floor(BUILTIN, context.facts.name)
    return floor.score if floor else None


def _evaluation_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem unless settings that change answers are evaluated by each update's benchmark, with no lower
    threshold than the kit's floor.
    """
    for context in model_contexts(config).values() if config.layer != "cluster" else ():
        change = next(answer_changes(context), None)
        if change is None:
            continue
        name = context.model.object_name
        why = f"{change.what} changes answers (set by {change.path}), so each update must evaluate {name}"
        least, floor = min_accuracy(context), _floor(context)
        if config.smoke.where == "none":
            yield Problem("smoke.where", "none", "cluster, or client", f"{why}, which smoke.where: none prevents")
        if least is None or (floor is not None and least < floor):
            accepted = f"at least {floor:g}, the kit's floor, or nothing" if floor else "a share of right answers"
            yield Problem("smoke.thresholds.minAccuracy", least, accepted, why)


def _names(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for names that aren't in the catalogue, for invalid names and for repeated names."""
    for i, pool in enumerate(config.gpu_pools):
        if catalogue.shape(pool.shape) is None:
            yield _unknown(f"gpuPools[{i}].shape", pool.shape, catalogue.shape_names())
    for i, model in enumerate(config.models):
        if catalogue.model(model.model) is None:
            yield _unknown(f"models[{i}].model", model.model, catalogue.model_names())
        elif not is_dns_label(model.object_name):
            why = (
                f"objects can't be called {model.object_name}: {DNS_LABEL_FORM}, at most {DNS_LABEL_LENGTH} characters"
            )
            yield Problem(f"models[{i}].name", None, "a name for the model's objects", why)
    names = [pool.name for pool in config.gpu_pools]
    for i, name in enumerate(names):
        if (first := names.index(name)) < i:
            yield Problem(f"gpuPools[{i}].name", name, "a name of its own", f"gpuPools[{first}] has it already")
    owners: dict[str, int] = {}
    for i, model in enumerate(config.models):
        units = unit_names(model)
        pickers = [f"{unit}-epp" for unit in units if model.router.mode != "none"]
        objects = sorted({model.object_name, *units, *pickers})  # name prefixes of its Services and Deployments
        if taken := [name for name in objects if name in owners]:
            key = "model" if model.name is None else "name"
            why = f"models[{owners[taken[0]]}] has objects of the name {taken[0]} already"
            yield Problem(f"models[{i}].{key}", model.name or model.model, f"models[{i}].name with another name", why)
        owners = {**dict.fromkeys(objects, i), **owners}


def _unknown(path: str, value: str, names: list[str]) -> Problem:
    by_repository = catalogue.model_of_repository(value)
    accepted = did_you_mean(value, names, by_repository.name if by_repository else None)
    return Problem(path, value, accepted, "the catalogue has no such entry")


def _shapes(config: StackConfig) -> Iterator[Problem]:
    names = [pool.shape.name for pool in pools(config)]
    if len(set(names)) > 1:
        yield Problem("gpuPools", names, "pools of one shape", "models are placed on nodes of one shape")


def _capacity(config: StackConfig, models: Sequence[ModelConfig]) -> Iterator[Problem]:
    """Yield a problem for servers that don't fit the nodes, and for units whose KV cache transfer needs RDMA that the
    stack lacks.
    """
    known_pools = pools(config)
    if len(known_pools) < len(config.gpu_pools) or len({pool.shape.name for pool in known_pools}) > 1:
        return
    impossible = lacks_virtual_functions(config, known_pools[0].shape)  # still check the number of GPUs
    counted = config.model_copy(update={"rdma": "none"}) if impossible else config
    nodes, left = place(servers(counted, models), empty_nodes(known_pools))
    if left:
        of_scaling = list(room_problems(counted, models, empty_nodes(known_pools)))
        yield from of_scaling or [_too_few_nodes(known_pools, list(servers(counted, models)), left)]
    elif any(pool.autoscaled for pool in known_pools):
        at_first, left = place_at_first(counted, models, known_pools)
        if left:  # the update would wait for servers before the autoscaler adds their nodes
            started = [*(server for node in at_first for server in node.servers), *left]
            yield _too_few_nodes([pool.at_first() for pool in known_pools], started, left)
    yield from pod_disk_problems(counted, nodes)
    used = sum(bool(node.servers) for node in nodes)
    if config.rdma == "none" and used > 1 and any(model.topology.disaggregated for model in models):
        shape = known_pools[0].shape
        makers = operators.virtual_function_makers(shape)
        accepted = "units that fit one node, or another shape"
        if shape.rdma.virtual_functions:
            accepted = "sriov-vf"
        elif makers and config.created_cluster is None:
            accepted = f"sriov-vf, with cluster.virtualFunctions: {' or '.join(makers)}"
        yield Problem("rdma", "none", accepted, f"KV cache moves between {used} nodes and needs RDMA")


def _too_few_nodes(
    known_pools: Sequence[PlannedPool], all_servers: Sequence[PlacedServer], left: Sequence[PlacedServer]
) -> Problem:
    pool, size = known_pools[0], sum(pool.limits.most for pool in known_pools)
    roomy = replace(pool, size=len(all_servers)).at_first()
    enough = sum(bool(node.servers) for node in place(all_servers, empty_nodes([roomy]))[0])
    gpus = sum(server.gpus for server in all_servers)
    functions = sum(server.virtual_functions for server in all_servers)
    needs = f"{gpus} GPUs" + (f" and {functions} virtual functions" if functions else "")
    has = f"{size * pool.shape.gpus}"
    has += f" GPUs and {size * pool.shape.rdma.virtual_functions} virtual functions" if functions else ""
    have = "1 node has" if size == 1 else f"{size} nodes have"
    homeless = len({(pod.unit, pod.role, pod.index) for pod in left})
    left_over = "1 server has" if homeless == 1 else f"{homeless} servers have"
    why = f"the models need {needs}, and {have} {has}; {left_over} no place"
    if len(known_pools) == 1:
        key = "scaling.maxSize" if pool.autoscaled else "size"
        return Problem(f"gpuPools[0].{key}", size, f"at least {enough}, or fewer or smaller servers", why)
    sizes = " + ".join(str(pool.limits.most) for pool in known_pools)
    accepted = f"at least {enough} nodes, or fewer or smaller servers"
    return Problem("gpuPools", Described(f"{sizes} nodes"), accepted, why)
