"""The servers of one role of a unit: a Deployment and its disruption budget."""

from typing import Any

import pulumi

from llmd_oke.catalogue.operators import named_by
from llmd_oke.objects import PART_OF, Manifest, when_declared
from llmd_oke.planning import Rollout, rollout
from llmd_oke.serving import labels, network_policies
from llmd_oke.serving.args import ServersArgs, UnitArgs
from llmd_oke.serving.lookup import model, release, shape
from llmd_oke.serving.manifests import declare
from llmd_oke.serving.model_pod import pod_template, pool_reader, protected_pool
from llmd_oke.serving.timeouts import timeouts
from llmd_oke.serving.versions import version
from llmd_oke.serving.vllm import ServerSpec


def model_servers(
    parent: pulumi.Resource, unit: str, role: str, args: UnitArgs, servers: ServersArgs
) -> pulumi.Output[str]:
    """Declares the servers of one role of a unit; the answer is the name of their Deployment, `<unit>-<role>`.

    Roles don't wait for each other: where GPUs are scarce, one role may only grow while another shrinks.

    Raises:
        KitError: the catalogue has no such release, model or shape.
    """
    name = f"{unit}-{role}"
    spec = server_spec(args, role, servers["tensor_parallel_size"])
    for right in pool_reader(unit, args) if protected_pool(spec, args) else ():
        declare(f"{name}-{right['kind'].lower()}", right, pulumi.ResourceOptions(parent=parent))
    declare(name, disruption_budget(name, unit, role, args), pulumi.ResourceOptions(parent=parent))
    declare(name, network_policy(name, unit, role, args), pulumi.ResourceOptions(parent=parent))
    manifest = deployment(name, unit, args, servers, spec)
    return when_declared(declare(name, manifest, _options(parent, servers, spec)), name)


def server_spec(args: UnitArgs, role: str, tensor_parallel_size: int) -> ServerSpec:
    """What a server of the unit is.

    Raises:
        KitError: the catalogue has no such release, model or shape.
    """
    return ServerSpec(
        release=release(args["release"], args.get("override")),
        model=model(args["model"]),
        shape=named_by(shape(args["shape"]), args.get("virtual_functions")),
        role=role,
        tensor_parallel_size=tensor_parallel_size,
        rdma=args.get("rdma", True),
        engine=args.get("engine", {}),
        cache=args.get("model_cache", {}),
    )


def deployment(name: str, unit: str, args: UnitArgs, servers: ServersArgs, spec: ServerSpec) -> Manifest:
    """The Deployment. Its selector has nothing that an update can change."""
    own = {labels.VERSION: version(spec), labels.TENSOR_PARALLEL_SIZE: str(spec.tensor_parallel_size)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": args["namespace"],
            "labels": {**labels.model_server(args.get("model_label", unit), unit, spec.role), **own},
        },
        "spec": {
            "replicas": servers["replicas"],
            "selector": {"matchLabels": labels.role_selector(unit, spec.role)},
            "strategy": _strategy(servers),
            "progressDeadlineSeconds": _create_timeout_s(servers, spec.model.startup_budget_s),
            "template": pod_template(unit, args, spec),
        },
    }


def disruption_budget(name: str, unit: str, role: str, args: UnitArgs) -> Manifest:
    """Draining nodes takes one server of a role away at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": args["namespace"], "labels": PART_OF},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels.role_selector(unit, role)}},
    }


def network_policy(name: str, unit: str, role: str, args: UnitArgs) -> Manifest:
    """Who may reach the servers of a role."""
    routed, control_plane = args.get("routed", False), args.get("control_plane_cidrs")
    metadata = {"name": name, "namespace": args["namespace"], "labels": PART_OF}
    rules = network_policies.servers_rules(unit, role, routed, control_plane)
    return network_policies.policy(metadata, labels.role_selector(unit, role), rules)


def _strategy(servers: ServersArgs) -> dict[str, Any]:
    how = _rollout(servers)
    return {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": how.max_surge, "maxUnavailable": how.max_unavailable},
    }


def _rollout(servers: ServersArgs) -> Rollout:
    return Rollout(servers.get("max_surge", 0), servers.get("max_unavailable", 1))


def _options(parent: pulumi.Resource, servers: ServersArgs, spec: ServerSpec) -> pulumi.ResourceOptions:
    """Servers of another size don't roll in: on full nodes the first of them would wait for GPUs that the last old ones
    still hold, and old decode servers would meet prefill servers of the new size. Neither do servers of another version
    where KV cache is handed over: a pool has one version, so that those of the other would serve nobody. So the old
    ones go first.

    The number of servers that are scaled stays as it is: Pulumi neither reverts nor, by taking the field back, resets
    it."""
    return pulumi.ResourceOptions(
        parent=parent,
        custom_timeouts=_timeouts(servers, spec.model.startup_budget_s),
        replace_on_changes=[
            f'metadata.labels["{label}"]'
            for label in (labels.TENSOR_PARALLEL_SIZE, *([labels.VERSION] if spec.transfers_cache else []))
        ],
        delete_before_replace=True,
        ignore_changes=["spec.replicas"] if servers.get("autoscaled") else None,
    )


def _timeouts(servers: ServersArgs, startup_budget_s: int) -> pulumi.CustomTimeouts:
    update_s = rollout.update_timeout_s(startup_budget_s, servers["replicas"], _rollout(servers))
    return timeouts(
        _create_timeout_s(servers, startup_budget_s),
        servers.get("update_timeout_s", update_s),
    )


def _create_timeout_s(servers: ServersArgs, startup_budget_s: int) -> int:
    return servers.get("create_timeout_s", rollout.create_timeout_s(startup_budget_s))
