"""The kit's Pulumi program: declaration of a stack's layers, with monitoring, canaries and smoke benchmarks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pulumi
from llmd_base.errors import InvalidStack, KitError
from llmd_bench.canary_request import CanaryRequest, CanaryUnit
from llmd_bench.evals import builtin_items
from pydantic import TypeAdapter, ValidationError

from llmd_oke import config, planning
from llmd_oke.catalogue.benchmarks import canaries
from llmd_oke.catalogue.monitoring import monitoring
from llmd_oke.config.base import HttpsUrl
from llmd_oke.objects import after
from llmd_oke.operators.crds import Crds
from llmd_oke.operators.helm_operators import LeaderWorkerSetController, PrometheusStack
from llmd_oke.planning import Advice, ModelPlan, Plan, advice_of_update, merge_advice
from llmd_oke.planning.cluster_plan import ClusterPlan
from llmd_oke.program.access import ClusterIdentity, existing_cluster, mirror_args
from llmd_oke.program.addresses import declare_front_door, declare_routes
from llmd_oke.program.arguments import arguments, common_args
from llmd_oke.program.models import (
    declare_address,
    declare_image_pull,
    declare_model_cache,
    declare_units,
    groups_namespace,
    keda_namespace,
    unit_name,
)
from llmd_oke.program.smoke import declare_smoke
from llmd_oke.serving import labels
from llmd_oke.serving.canary import Canary, CanaryArgs
from llmd_oke.serving.monitoring import ModelMonitoring, ModelMonitoringArgs
from llmd_oke.serving.namespace import ServingNamespace, ServingNamespaceArgs
from llmd_oke.values import open_project

_LINKS = TypeAdapter(dict[str, HttpsUrl])


def program(project: Path | None = None) -> None:
    """Run the kit's Pulumi program: plan the stack's config, declare all components, and export the outputs.

    `project` is the directory of Pulumi.yaml; if left out, the engine's root directory, or else the working directory.
    With the config key `rehearsed`, nodes pull no images.

    Raises:
        InvalidStack: the config, or the project's own `values/`, isn't valid.
    """
    folder = project or Path(pulumi.get_root_directory() or ".")
    open_project(folder)
    settings = pulumi.Config("llmd-oke")
    nodes_pull = not settings.get_bool("rehearsed")
    stack = config.effective_object(settings.require_object("stack"), folder)
    try:
        plan = planning.plan(config.validate(stack.value), nodes_pull=nodes_pull)
    except InvalidStack as refused:
        raise InvalidStack(stack.located(refused.problems)) from refused
    updates = merge_advice(Advice(model.name, model.update_note) for model in plan.models)
    for advice in (*advice_of_update(plan), *updates):
        pulumi.log.info(f"{advice.path}: {advice.text}")
    for name, value in deploy(plan, settings).items():
        pulumi.export(name, value)


def deploy(plan: Plan, settings: pulumi.Config) -> dict[str, Any]:
    """Declare the components of the plan's layer; return the stack's outputs.

    `settings` are the stack's config keys besides `llmd-oke:stack`: the secrets `huggingFaceToken`, `modelSourceUrl`,
    `imageLinks` and those of the front door (`planning.front_door_secrets`); `apiServer`, the URL of a created
    cluster's API server at the local end of a tunnel; `allowReplace`, true to remove the protection of cluster,
    network and pools, so that the next update may replace them; and `randomWeights`, true if the models' weights are
    random, so that smoke benchmarks ask no questions with known answers.
    """
    plan = plan.without_questions() if settings.get_bool("randomWeights") else plan
    outputs: dict[str, Any] = {}
    if plan.created is not None:
        created = plan.created.without_protection() if settings.get_bool("allowReplace") else plan.created
        access, outputs = _create(plan, created, settings)
    else:
        access = existing_cluster(plan)
    crds = None
    if plan.layer != "serving":  # definitions outlive stacks, so that existing ones are adopted (`upsert`)
        of_cluster = pulumi.ResourceOptions(provider=access.provider("definitions", upsert=True))
        crds = Crds("crds", {"release": plan.release.name}, after(of_cluster, *access.ready))
    access = declare_group_controller(plan, declare_prometheus(plan, access))
    if plan.layer == "cluster":
        return outputs
    return {**outputs, **_serve(plan, settings, access, crds)}


def _create(plan: Plan, created: ClusterPlan, settings: pulumi.Config) -> tuple[ClusterIdentity, dict[str, Any]]:
    """Declare the created cluster; return its identity and the stack's outputs. OCI's packages are imported here, so
    that stacks without a created cluster don't load them.
    """
    from llmd_oke.program.cluster import (  # noqa: PLC0415
        create_cluster,
        declare_autoscaler,
        declare_budget,
        declare_node_repair,
        declare_oci_monitoring,
        declare_operators,
        declare_policy_engine,
    )

    rehearsed = bool(settings.get_bool("rehearsed"))
    links, mirror = image_links(settings), plan.registry_mirror
    cluster = create_cluster(created, settings.get("apiServer"), links, mirror, rehearsed=rehearsed)
    engines = declare_policy_engine(plan, cluster, cluster.inside, rehearsed=rehearsed)
    declare_node_repair(plan, cluster, cluster.inside)
    declare_budget(plan, cluster)
    declare_oci_monitoring(plan, cluster)
    gates = declare_operators(plan, cluster, cluster.inside)
    declare_autoscaler(plan, cluster, gates)
    access = replace(cluster.access, ready=(*cluster.nodes, *engines, *gates))
    return access, {**cluster.outputs(plan, created.region)}


def image_links(settings: pulumi.Config) -> dict[str, str]:
    """Return the URIs of image files by pool, as plain text, which must be used in secret inputs only.

    Raises:
        KitError: `llmd-oke:imageLinks` isn't an object of https:// URIs.
    """
    try:
        return _LINKS.validate_json(settings.get("imageLinks") or "{}")
    except ValidationError as error:
        remedy = "Set one for each pool: pulumi config set --secret --path llmd-oke:imageLinks.<pool>"
        raise KitError("llmd-oke:imageLinks is no object of https:// links by pool.", remedy) from error


def _serve(plan: Plan, settings: pulumi.Config, access: ClusterIdentity, crds: Crds | None) -> dict[str, Any]:
    inside = after(access.options(access.provider("cluster")), *access.ready)
    sizes = {role.parallelism.gpus_per_node for model in plan.models for unit in model.units for role in unit.roles}
    namespace = ServingNamespace(
        "serving",
        arguments(
            ServingNamespaceArgs,
            common_args(plan),
            plan.network_policies,
            tensor_parallel_sizes=sorted(sizes),
            hugging_face_token=settings.get_secret("huggingFaceToken"),
        ),
        inside,
    )
    source_url = settings.get_secret("modelSourceUrl")
    cache = declare_model_cache(plan, namespace, source_url, inside, access.model_cache_handle)
    image = declare_image_pull(plan, namespace, inside)
    keda, groups = keda_namespace(plan, access, namespace), groups_namespace(plan, access, namespace)
    units = {
        model.name: declare_units(plan, model, namespace, cache, image, crds, inside, keda, groups)
        for model in plan.models
    }
    serving = [resource for resources in units.values() for resource in resources]
    door = None
    if plan.front_door is not None:
        door = declare_front_door(plan, plan.front_door, access, settings, [namespace, *serving])
    behind = after(inside, namespace)
    addresses = {
        model.name: declare_address(plan, model, behind, units[model.name], door)
        for model in plan.models
        if not model.behind_gateway
    }
    if plan.gateway is not None:
        addresses |= declare_routes(plan, plan.gateway, access, namespace, behind, units)
    declare_monitoring(plan, access, namespace, inside)
    declare_canaries(plan, after(inside, *serving))
    declare_smoke(plan, pulumi.get_stack(), after(inside, *serving, *addresses.values()))
    return {
        "namespace": plan.namespace,
        "endpoints": {name: address.url for name, address in addresses.items()},
        **({"front_door": door.url} if door is not None else {}),
        "topologies": {model.name: str(model.topology) for model in plan.models},
    }


def declare_canaries(plan: Plan, opts: pulumi.ResourceOptions) -> None:
    """Declare the canaries of all models, if the stack's monitoring has canaries."""
    if plan.monitoring is None or plan.monitoring.canaries_every_s is None:
        return
    for model in plan.models:
        Canary(
            f"canary-{model.name}",
            arguments(
                CanaryArgs,
                common_args(plan),
                model=model.name,
                image=plan.release.vllm.image.pinned,
                request=canary_request(plan, model, plan.monitoring.canaries_every_s).to_json(),
            ),
            opts,
        )


def canary_request(plan: Plan, model: ModelPlan, every_s: int) -> CanaryRequest:
    """Return the request of a model's canary: which servers of each unit (servers with a router of their own) it sends
    which prompts, every `every_s` seconds.
    """
    known = canaries()
    units = {unit_name(plan, model, unit): unit for unit in model.units}
    return CanaryRequest(
        namespace=plan.namespace,
        model=model.model.repository,
        units=tuple(
            CanaryUnit(name, {role.role: labels.role_selector(name, role.role) for role in unit.roles})
            for name, unit in units.items()
        ),
        version_label=labels.VERSION,
        ports={role.role: role.settings.vllm_port for role in model.units[0].roles},
        prompts=tuple(item.prompt for item in builtin_items(known.questions)),
        max_tokens=known.questions.max_output_tokens,
        every_s=every_s,
        timeout_s=known.timeout_s,
    )


def declare_prometheus(plan: Plan, access: ClusterIdentity) -> ClusterIdentity:
    """Declare Prometheus, if the stack installs it; return the cluster's identity with Prometheus among the resources
    that models depend on, since their monitors need its custom resource definitions.
    """
    if plan.monitoring is None or not plan.monitoring.install:
        return access
    opts = after(access.options(access.provider("monitoring")), *access.ready)
    prometheus = PrometheusStack("prometheus", {"registry_mirror": mirror_args(plan)}, opts)
    return replace(access, ready=(*access.ready, prometheus))


def declare_group_controller(plan: Plan, access: ClusterIdentity) -> ClusterIdentity:
    """Declare the LeaderWorkerSet controller, if the stack installs it; return the cluster's identity with the
    controller among the resources that models depend on.
    """
    if not plan.installs_group_controller:
        return access
    opts = after(access.options(access.provider("groups")), *access.ready)
    controller = LeaderWorkerSetController("leader-worker-sets", {"registry_mirror": mirror_args(plan)}, opts)
    return replace(access, ready=(*access.ready, controller))


def declare_monitoring(
    plan: Plan, access: ClusterIdentity, namespace: pulumi.Resource, opts: pulumi.ResourceOptions
) -> None:
    """Declare the monitoring of the models, after a wait for the Prometheus operator's custom resource definitions.

    Raises:
        KitError: (when the output resolves) a definition is missing after the limit.
    """
    watched = plan.monitoring
    if watched is None:
        return
    routers = [unit_name(plan, model, unit) for model in plan.models if model.routed for unit in model.units]
    ModelMonitoring(
        "monitoring",
        arguments(
            ModelMonitoringArgs,
            common_args(plan),
            watched,
            namespace=access.name_once_served(plan.namespace, monitoring(), namespace),
            routers=routers,
            leader=any(model.routed and model.router_replicas > 1 for model in plan.models),
            canaries=watched.canaries_every_s is not None,
            endpoint_picker=plan.release.endpoint_picker.program.version,
        ),
        after(opts, namespace),
    )
