"""Units of model servers (servers with a router of their own): a Deployment for each role, whose pods run vLLM, for
decode behind a routing sidecar, or a LeaderWorkerSet where servers span nodes, or one DisaggregatedSet for both roles.

A KEDA ScaledObject for each Deployment scales servers by load.
"""

import json
import math
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

import pulumi
from llmd_base.records import document
from llmd_bench.deployment import Parallelism

from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.operators import with_function_names
from llmd_oke.catalogue.releases import POD_IP
from llmd_oke.catalogue.server_settings import SERVER_PORT
from llmd_oke.catalogue.serving import ScalingRate, scaling
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.config import Role
from llmd_oke.kubernetes_types import Container, ObjectMeta, PodMeta, PodSpec, PodTemplate, PolicyRule
from llmd_oke.objects import (
    RESTRICTED_CONTAINER,
    Manifest,
    field_value,
    inputs,
    mapped,
    register_outputs,
    resolve_model,
    resolve_release,
    resolve_shape,
    when_declared,
)
from llmd_oke.planning import Rollout, placement
from llmd_oke.serving import compiled_code, kv_cache_disk, labels, network_policies, vllm
from llmd_oke.serving.args import ServersArgs, UnitArgs
from llmd_oke.serving.disaggregated_set import declare_disaggregated_set
from llmd_oke.serving.leader_worker_set import (
    leader_worker_set,
    peer_environment,
    peer_hosts,
    peer_names_container,
    set_spec,
)
from llmd_oke.serving.manifests import (
    NAMESPACE_S,
    api_access_mount,
    api_access_volume,
    declare,
    from_field,
    object_metadata,
    plain_variables,
    role,
    role_binding,
    timeouts,
    tolerations,
    tracing_environment,
)
from llmd_oke.serving.model_cache import adapters_volumes, containers, program_volume
from llmd_oke.serving.namespace import class_name
from llmd_oke.serving.vllm import ServerSpec, version


class AggregatedUnitArgs(UnitArgs, TypedDict):
    """Arguments of an aggregated unit, whose servers each compute prompts and generate tokens."""

    servers: ServersArgs
    """Servers that compute prompts and generate tokens."""


class PrefillDecodeUnitArgs(UnitArgs, TypedDict):
    """Arguments of a prefill/decode unit, whose prefill servers hand KV cache over to its decode servers."""

    prefill: ServersArgs
    """Servers that compute prompts and hand over their KV cache."""
    decode: ServersArgs
    """Servers that generate tokens, each behind a routing sidecar."""
    disaggregated_set: NotRequired[bool | None]
    """Whether the servers of both roles are one DisaggregatedSet, whose controller replaces them in step and must be
    installed in the cluster; if false or left out, each role is a Deployment or LeaderWorkerSet of its own."""


class ScaledServersArgs(TypedDict):
    """Limits on the number of servers of one role, and thresholds of the average load of a server, above which servers
    are added.
    """

    min_replicas: int
    """Minimum number of servers."""
    max_replicas: int
    """Maximum number of servers."""
    share: NotRequired[int | None]
    """Number of this role's servers in the ratio between all roles that have a `share`: each of these roles is scaled
    by the load of the others too, so that the ratio stays. A role without `share` is scaled by its own load only.
    """
    requests: NotRequired[float | None]
    """Threshold of running and waiting requests per server."""
    prompt_tokens_per_s: NotRequired[float | None]
    """Threshold of prompt tokens per second and server: those that it computes, plus the tokens of its waiting prompts
    divided by 30 s.
    """
    kv_cache_usage: NotRequired[float | None]
    """Threshold of the used share of a server's KV cache; 0.8 is 80 %."""


class ModelScalingArgs(TypedDict):
    """Arguments of the scaling of a unit's servers (those of one router) by load."""

    namespace: pulumi.Input[str]
    """Namespace of the unit's objects."""
    unit: str
    """Name of the unit, which is the prefix of its Deployments' names."""
    servers: dict[str, ScaledServersArgs]
    """Limits and thresholds by role: `prefill`, `decode` or `aggregated`."""
    prometheus: NotRequired[pulumi.Input[str] | None]
    """URL of the Prometheus that has vLLM's metrics; that of the llm-d guides if left out."""
    scale_up_window_s: NotRequired[int | None]
    """Seconds that a higher load must last (stabilization window); 0 if left out."""
    scale_down_window_s: NotRequired[int | None]
    """Seconds that a lower load must last (stabilization window); 300 if left out."""


class AggregatedUnit(pulumi.ComponentResource):
    """Identical servers of one model, each of which does prefill and decode."""

    deployment: pulumi.Output[str]
    """Name of the servers' Deployment."""

    def __init__(self, name: str, args: AggregatedUnitArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:AggregatedUnit", name, inputs(self, args), opts)
        self.deployment = model_servers(self, name, "aggregated", args, args["servers"])
        register_outputs(self)


class PrefillDecodeUnit(pulumi.ComponentResource):
    """Prefill and decode servers of one model; prefill servers hand KV cache over to decode servers."""

    prefill_deployment: pulumi.Output[str]
    """Name of the prefill servers' Deployment, or of the set in its place."""
    decode_deployment: pulumi.Output[str]
    """Name of the decode servers' Deployment, or of the set in its place."""

    def __init__(self, name: str, args: PrefillDecodeUnitArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:PrefillDecodeUnit", name, inputs(self, args), opts)
        if args.get("disaggregated_set"):
            self.prefill_deployment = self.decode_deployment = _set_of_roles(self, name, args)
        else:
            self.prefill_deployment = model_servers(self, name, "prefill", args, args["prefill"])
            self.decode_deployment = model_servers(self, name, "decode", args, args["decode"])
        register_outputs(self)


class ModelScaling(pulumi.ComponentResource):
    """The ScaledObjects of a unit. KEDA must be installed, and the Deployments must be `autoscaled`.

    Without metrics of the servers in Prometheus their number doesn't change.
    """

    scaled_objects: pulumi.Output[list[str]]
    """Names of the ScaledObjects, which are also the names of the Deployments."""

    def __init__(self, name: str, args: ModelScalingArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelScaling", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(NAMESPACE_S))
        manifests = [scaled_object(role, args) for role in args["servers"]]
        declared = [
            when_declared(declare(f"{name}-{role}", manifest, child), manifest["metadata"]["name"])
            for role, manifest in zip(args["servers"], manifests, strict=True)
        ]
        self.scaled_objects = pulumi.Output.all(*declared)
        register_outputs(self)


def model_servers(
    parent: pulumi.Resource, unit: str, role: Role, args: UnitArgs, servers: ServersArgs
) -> pulumi.Output[str]:
    """Declare the servers of one role of a unit; return the name of their Deployment or LeaderWorkerSet,
    `<unit>-<role>`.

    Roles don't depend on each other: where GPUs are scarce, one role can only grow while the other shrinks.

    Raises:
        KitError: the catalogue has no such release, model or shape.
    """
    name = f"{unit}-{role}"
    spec = server_spec(args, role, _parallelism(args, servers))
    _declare_rules(parent, name, unit, args, spec)
    manifest = workload(name, unit, args, servers, spec)
    return when_declared(declare(name, manifest, _options(parent, servers, spec)), name)


def _declare_rules(parent: pulumi.Resource, name: str, unit: str, args: UnitArgs, spec: ServerSpec) -> None:
    """Declare what the servers of a role have besides their workload: rights, disruption budget, network policy."""
    pool = protected_pool(spec, args)
    for right in pool_reader(unit, pool, args) if pool else ():
        declare(f"{name}-{right['kind'].lower()}", right, pulumi.ResourceOptions(parent=parent))
    declare(name, disruption_budget(name, unit, spec.role, args), pulumi.ResourceOptions(parent=parent))
    declare(name, network_policy(name, unit, spec.role, args, spec), pulumi.ResourceOptions(parent=parent))


def _set_of_roles(parent: pulumi.Resource, unit: str, args: PrefillDecodeUnitArgs) -> pulumi.Output[str]:
    """Declare the servers of both roles of a unit as a DisaggregatedSet; return its name, known once a Job has seen
    that all of them are ready.
    """
    roles, limits_s, replaced = dict[Role, Manifest](), list[int](), list[str]()
    both: dict[Role, ServersArgs] = {"prefill": args["prefill"], "decode": args["decode"]}
    for name, servers in both.items():
        spec = replace(server_spec(args, name, _parallelism(args, servers)), disaggregated_set=True)
        _declare_rules(parent, f"{unit}-{name}", unit, args, spec)
        roles[name] = {"metadata": {"labels": _labels(unit, args, spec)}, "spec": _set_spec(unit, args, servers, spec)}
        limits_s += _limits_s(servers, spec)
        replaced = [f"spec.roles[*].{label}" for label in _replacing(spec)]
    return declare_disaggregated_set(parent, unit, args, roles, max(limits_s), replaced)


def _parallelism(args: UnitArgs, servers: ServersArgs) -> Parallelism:
    experts = servers.get("expert_parallel")
    return Parallelism(
        servers["tensor_parallel_size"],
        servers.get("data_parallel_size") or 1,
        resolve_model(args["model"]).expert_parallel if experts is None else experts,
        servers.get("nodes") or 1,
    )


def server_spec(args: UnitArgs, role: Role, parallelism: Parallelism) -> ServerSpec:
    """Return the specification of the unit's servers of one role.

    Raises:
        KitError: the catalogue has no such release, model or shape.
    """
    return ServerSpec(
        release=resolve_release(args["release"], args.get("override")),
        model=resolve_model(args["model"]),
        shape=with_function_names(resolve_shape(args["shape"]), args.get("virtual_functions")),
        role=role,
        parallelism=parallelism,
        rdma=args.get("rdma") is not False,
        engine=args.get("engine") or {},
        cache=args.get("model_cache") or {},
        tracing=args.get("tracing"),
        kv_events=bool(args.get("kv_events")),
    )


def workload(name: str, unit: str, args: UnitArgs, servers: ServersArgs, spec: ServerSpec) -> Manifest:
    """Return the servers of one role: a Deployment, whose selector contains no label that an update can change, or a
    LeaderWorkerSet if each server spans nodes.
    """
    metadata: ObjectMeta = {"name": name, "namespace": args["namespace"], "labels": _labels(unit, args, spec)}
    if spec.parallelism.nodes > 1:
        return leader_worker_set(metadata, _set_spec(unit, args, servers, spec))
    strategy = _rollout(servers)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": servers["replicas"],
            "selector": {"matchLabels": labels.role_selector(unit, spec.role)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": strategy.max_surge, "maxUnavailable": strategy.max_unavailable},
            },
            "progressDeadlineSeconds": _limits_s(servers, spec)[0],
            "template": pod_template(unit, args, spec),
        },
    }


def _set_spec(unit: str, args: UnitArgs, servers: ServersArgs, spec: ServerSpec) -> Manifest:
    """Return the specification of the LeaderWorkerSet of one role's servers."""
    selector, keeps = labels.role_selector(unit, spec.role), args.get("keeps_to_pools") or False
    nodes, template = spec.parallelism.nodes, pod_template(unit, args, spec)
    return set_spec(servers["replicas"], nodes, _rollout(servers), template, selector, keeps_to_pool=keeps)


def disruption_budget(name: str, unit: str, role: str, args: UnitArgs) -> Manifest:
    """Return the PodDisruptionBudget by which draining nodes evicts one server of a role at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": object_metadata(name, args["namespace"]),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels.role_selector(unit, role)}},
    }


def network_policy(name: str, unit: str, role: str, args: UnitArgs, spec: ServerSpec) -> Manifest:
    """Return the network policy on connections to and from the servers of a role."""
    routed, control_plane = args.get("routed") or False, args.get("control_plane_cidrs")
    metadata = object_metadata(name, args["namespace"])
    over_nodes = spec.parallelism.nodes > 1
    sources = network_policies.servers_rules(
        unit,
        role,
        routed,
        control_plane,
        args.get("gateway"),
        signed_in=bool(args.get("signed_in")),
        over_nodes=over_nodes,
        events_port=spec.reports.port if spec.reports else None,
    )
    destinations = network_policies.servers_destinations(
        unit,
        role,
        asks_api_server=bool(protected_pool(spec, args)),
        control_plane=control_plane,
        tracing=args.get("tracing"),
        over_nodes=over_nodes,
    )
    return network_policies.policy(metadata, labels.role_selector(unit, role), sources, destinations)


def _rollout(servers: ServersArgs) -> Rollout:
    max_unavailable = servers.get("max_unavailable")
    return Rollout(servers.get("max_surge") or 0, 1 if max_unavailable is None else max_unavailable)


def _options(parent: pulumi.Resource, servers: ServersArgs, spec: ServerSpec) -> pulumi.ResourceOptions:
    """Return the resource options of a role's servers.

    Servers of another size replace the old ones instead of rolling in: on full nodes the first new server would wait
    for GPUs of the last old ones, and old decode servers would be paired with prefill servers of the new size. The same
    holds for another version if KV cache is handed over: an InferencePool has one version, so that servers of the other
    would get no requests. Old servers are deleted first.

    Pulumi ignores the number of servers if an autoscaler changes it: Pulumi neither reverts the number, nor resets it
    by removing the field.
    """
    return pulumi.ResourceOptions(
        parent=parent,
        custom_timeouts=timeouts(*_limits_s(servers, spec)),
        replace_on_changes=_replacing(spec),
        delete_before_replace=True,
        ignore_changes=["spec.replicas"] if servers.get("autoscaled") else None,
    )


def _replacing(spec: ServerSpec) -> list[str]:
    """Return the paths of the labels whose change replaces servers at once."""
    sizes = (labels.TENSOR_PARALLEL_SIZE, labels.DATA_PARALLEL_SIZE)
    return [
        f'metadata.labels["{label}"]' for label in (*sizes, *([labels.VERSION] if spec.settings.hands_over else []))
    ]


def _limits_s(servers: ServersArgs, spec: ServerSpec) -> tuple[int, int]:
    """Return the limits in seconds of the creation and of an update of a role's servers."""
    budget_s = spec.model.startup_budget_s
    update_s = placement.update_timeout_s(budget_s, servers["replicas"], _rollout(servers))
    create_s = servers.get("create_timeout_s") or placement.create_timeout_s(budget_s)
    return create_s, servers.get("update_timeout_s") or update_s


def _labels(unit: str, args: UnitArgs, spec: ServerSpec) -> dict[str, str]:
    """Return the labels of a Deployment and of its pods."""
    spread = spec.parallelism
    ranks = {labels.DATA_PARALLEL_SIZE: str(spread.data_parallel_size)} if spread.data_parallel_size > 1 else {}
    return {
        **labels.model_server(args.get("model_label") or unit, unit, spec.role),
        labels.VERSION: version(spec),
        labels.TENSOR_PARALLEL_SIZE: str(spread.tensor_parallel_size),
        **ranks,
    }


def pod_template(unit: str, args: UnitArgs, spec: ServerSpec) -> PodTemplate:
    """Return the pod template of a Deployment or LeaderWorkerSet."""
    metadata: PodMeta = {"labels": _labels(unit, args, spec)}
    if spec.on_rdma_network:
        metadata["annotations"] = network_annotations(spec.shape, spec.settings.virtual_functions)
    return {"metadata": metadata, "spec": pod_spec(spec, args)}


def pod_spec(spec: ServerSpec, args: UnitArgs) -> PodSpec:
    """Return the pod specification of a server. Service links are off, since those of a Service named `vllm` would set
    VLLM_PORT, a variable of vLLM, which then fails.
    """
    pod: PodSpec = {
        "serviceAccountName": field_value(args["service_account"]),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": placement.TERMINATION_GRACE_S,
        "securityContext": vllm.pod_security(spec),
        "nodeSelector": {INSTANCE_TYPE_LABEL: spec.shape.name},
        "tolerations": tolerations(spec.shape, args.get("node_taints")),
        "containers": [vllm.container(spec)],
        "volumes": [
            *vllm.pod_volumes(spec),
            *([program_volume(), *adapters_volumes(spec.cache)] if spec.prewarmed else []),
            *([api_access_volume()] if protected_pool(spec, args) else []),
        ],
    }
    if prefix := args.get("priority_class_prefix"):
        pod["priorityClassName"] = class_name(prefix, spec.parallelism.gpus_per_node)
    if first := init_containers(spec, args):
        pod["initContainers"] = first
    return pod


def protected_pool(spec: ServerSpec, args: UnitArgs) -> str | None:
    """Return the InferencePool to whose pods the routing sidecar limits remote prefill; None if it doesn't check."""
    protects = spec.role == "decode" and spec.release.routing_sidecar.ssrf_protection
    return args.get("inference_pool") if protects else None


def init_containers(spec: ServerSpec, args: UnitArgs) -> list[Container]:
    """Return the containers that start before vLLM. Each pod checks the cache, because nodes may be added after it was
    filled.
    """
    cached = containers(spec.model, spec.cache) if "prewarm" in spec.cache else []
    compiled = [compiled_code.container(vllm.compiled_key(spec), spec.user)] if spec.keeps_compiled_code else []
    files: list[Container] = []
    if most_gib := spec.settings.disk_gib:
        files = kv_cache_disk.containers(spec.model.name, vllm.kv_cache_key(spec), spec.user, most_gib)
    awaited = [peer_names_container(spec)] if _names_peers(spec) else []
    return [*cached, *compiled, *files, *awaited, *([routing_sidecar(spec, args)] if spec.role == "decode" else [])]


def _names_peers(spec: ServerSpec) -> bool:
    """Return True if the routing sidecar gets the names of all pods that KV cache is handed over between."""
    way = spec.settings.hand_over
    return spec.role == "decode" and spec.parallelism.nodes > 1 and way is not None and way.ranks is not None


def _connector_arguments(spec: ServerSpec) -> list[str]:
    """Return the routing sidecar's arguments for the KV connector."""
    way, spread = spec.settings.hand_over, spec.parallelism
    if way is None:
        return []
    ranks = way.ranks if spread.data_parallel_size > 1 else None
    of_ranks = [*ranks.sidecar_arguments, *(ranks.over_nodes if spread.nodes > 1 else ())] if ranks else []
    told = document(
        "tensor_parallel_size data_parallel_size data_parallel_size_local",
        spread,
        prefill_hosts=",".join(peer_hosts(spec, "prefill")),
        decode_hosts=",".join(peer_hosts(spec, "decode")),
    )
    return [argument.format(**told) for argument in (*way.sidecar_arguments, *of_ranks)]


def routing_sidecar(spec: ServerSpec, args: UnitArgs) -> Container:
    """Return the proxy that has prompts prefilled by other servers: a native sidecar, which starts before vLLM and ends
    after it.

    The sidecar's `/health` doesn't reflect vLLM's, so that the pod's readiness checks vLLM's port too. With invalid
    configuration the sidecar ends with exit code 0; the probes of its port keep such a pod from loading weights and
    becoming ready.
    """
    sidecar, pool = spec.release.routing_sidecar, protected_pool(spec, args)
    ports = [f"--port={SERVER_PORT}", f"{sidecar.server_port_flag}={spec.settings.vllm_port}"]
    own = [*ports, *_connector_arguments(spec), *sidecar.arguments]
    # A pool without its namespace would be looked for in `default`.
    pool_flag = mapped(args["namespace"], lambda namespace: f"--inference-pool={namespace}/{pool}")
    protection = ["--enable-ssrf-protection", pool_flag] if pool else []
    traced = tracing_environment(f"{spec.model.name}-routing-proxy", spec.tracing)
    address = [from_field(POD_IP, "status.podIP")] if any(f"$({POD_IP})" in word for word in own) else []
    variables = plain_variables(traced) + (peer_environment(spec) if _names_peers(spec) else address)
    container: Container = {
        "name": "routing-proxy",
        "image": sidecar.image.pinned,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "args": [*own, *protection, *(sidecar.tracing_arguments or () if traced else ())],
        "ports": [{"name": "proxy", "containerPort": SERVER_PORT, "protocol": "TCP"}],
        "startupProbe": {"tcpSocket": {"port": "proxy"}, "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {
            "tcpSocket": {"port": "proxy"},
            "periodSeconds": 5,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "resources": {"requests": {"cpu": "1", "memory": "512Mi", "ephemeral-storage": "256Mi"}},
        "securityContext": {**RESTRICTED_CONTAINER, "runAsNonRoot": True},
    }
    if variables:
        container["env"] = variables
    if pool:
        container["volumeMounts"] = [api_access_mount()]
    return container


def pool_reader(unit: str, pool: str, args: UnitArgs) -> list[Manifest]:
    """Return Role and RoleBinding by which the routing sidecars of a unit read the pods of their InferencePool."""
    metadata = object_metadata(f"{unit}-routing-sidecar", args["namespace"])
    read = ["get", "list", "watch"]
    rules: list[PolicyRule] = [
        {
            "apiGroups": ["inference.networking.k8s.io"],
            "resources": ["inferencepools"],
            "resourceNames": [pool],
            "verbs": read,
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": read},
    ]
    return [role(metadata, rules), role_binding(metadata, args["service_account"])]


def network_annotations(shape: Shape, virtual_functions: int) -> dict[str, str]:
    """Return the pod annotation that attaches RDMA virtual functions, one for each GPU (llm-d guides, amd/vllm/oci
    overlay).
    """
    attachment = document("name namespace", shape.rdma.network_attachment)
    networks = [{**attachment, "interface": f"net{i + 1}"} for i in range(virtual_functions)]
    return {"k8s.v1.cni.cncf.io/networks": json.dumps(networks)}


def scaled_object(role: str, args: ModelScalingArgs) -> Manifest:
    """Return the ScaledObject of one role, with a trigger for each threshold; the trigger that needs the most servers
    decides.

    Roles with a `share` have each other's triggers too, with thresholds in the ratio of the shares, so that the ratio
    of their servers stays.
    """
    facts, servers = scaling(), args["servers"][role]
    deployment = f"{args['unit']}-{role}"
    shares = [share for other in args["servers"].values() if (share := other.get("share"))]
    at_once = math.ceil((servers.get("share") or 1) / min(shares, default=1))
    behavior = {
        "scaleUp": _behavior(facts.scale_up, args.get("scale_up_window_s"), at_once),
        "scaleDown": _behavior(facts.scale_down, args.get("scale_down_window_s"), at_once),
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": object_metadata(deployment, args["namespace"]),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment},
            "minReplicaCount": servers["min_replicas"],
            "maxReplicaCount": servers["max_replicas"],
            "pollingInterval": facts.polling_interval_s,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": _triggers(role, args),
        },
    }


def _triggers(role: str, args: ModelScalingArgs) -> list[dict[str, Any]]:
    """Return the triggers for the load of the role itself, and for the loads of the roles that it is in proportion to.

    For another role's load, the threshold is multiplied by that role's share and divided by the own share, which gives
    the number of own servers for it. Since a role follows the other's load instead of its number of servers, neither
    keeps the other from scaling down.
    """
    facts, own = scaling(), args["servers"][role]
    others = [other for other in args["servers"] if other != role]
    return [
        {
            "type": "prometheus",
            "name": ("" if follows == role else f"{follows}-") + name.replace("_", "-"),
            "metricType": "AverageValue",
            "metadata": {
                "serverAddress": args.get("prometheus") or facts.prometheus,
                "query": _query(query, f"{args['unit']}-{follows}", args["namespace"]),
                "threshold": f"{threshold * proportion:.12g}",
                "ignoreNullValues": "false",
            },
        }
        for follows in (role, *others)
        if (proportion := _proportion(own, args["servers"][follows]))
        for name, query in facts.queries.items()
        if (threshold := args["servers"][follows].get(name)) is not None
    ]


def _proportion(own: ScaledServersArgs, other: ScaledServersArgs) -> float | None:
    """Return the number of servers of another role for each own one; None if one of the two has no share."""
    if own is other:
        return 1
    share, other_share = own.get("share"), other.get("share")
    return other_share / share if share and other_share else None


def _query(query: str, deployment: str, namespace: pulumi.Input[str]) -> pulumi.Output[str]:
    """Return the query for the pods of a Deployment, whose names are the Deployment's with two generated suffixes."""
    pods = f"{deployment}-[a-z0-9]+-[a-z0-9]+"

    def selected(name: str) -> str:
        return query.replace("<selector>", f'{{namespace="{name}",pod=~"{pods}"}}')

    return pulumi.Output.from_input(namespace).apply(selected)


def _behavior(pace: ScalingRate, window_s: int | None, at_once: int) -> dict[str, Any]:
    return {
        "stabilizationWindowSeconds": pace.window_s if window_s is None else window_s,
        "policies": [{"type": "Pods", "value": pace.pods * at_once, "periodSeconds": pace.period_s}],
    }
