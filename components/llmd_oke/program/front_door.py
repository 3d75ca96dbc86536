"""The front door of a plan: what it leads to, and its secrets from the stack's config."""

from collections.abc import Mapping, Sequence

import pulumi

from llmd_oke.config.front_door import Exposure, LoadBalancer
from llmd_oke.objects import after
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.planning.plan import FrontDoorModel, FrontDoorPlan
from llmd_oke.program.access import ClusterAccess
from llmd_oke.program.models import override_args, unit_name
from llmd_oke.serving.router import service_name
from llmd_oke.serving.stack_front_door import (
    NAME,
    FrontDoorIssuerArgs,
    FrontDoorLoadBalancerArgs,
    FrontDoorModelArgs,
    FrontDoorTokensArgs,
    FrontDoorUnitArgs,
    StackFrontDoor,
    StackFrontDoorArgs,
)


def declare_front_door(
    plan: Plan,
    door: FrontDoorPlan,
    access: ClusterAccess,
    settings: pulumi.Config,
    needed: Sequence[pulumi.Resource],
) -> StackFrontDoor:
    """The front door, by a provider that changes weights, keys and certificate in place, after all that it leads to.

    Raises:
        Refused: a secret of the stack's config is missing or can't be used.
    """
    provider = access.provider(NAME, mutable=True)
    opts = after(access.options(provider), *access.ready, *needed)
    return StackFrontDoor(NAME, front_door_args(plan, door, access, settings), opts)


def front_door_args(
    plan: Plan, door: FrontDoorPlan, access: ClusterAccess, settings: pulumi.Config
) -> StackFrontDoorArgs:
    """The arguments of the front door; secrets are plain here and go into secret inputs only.

    Raises:
        Refused: a secret of the stack's config is missing or can't be used.
    """
    from llmd_oke.planning import front_door_secrets  # noqa: PLC0415 - loads a library that reads certificates

    names = (front_door_secrets.KEYS, front_door_secrets.KEY_SET, front_door_secrets.CERTIFICATE)
    secrets = front_door_secrets.read_secrets(door, {name: settings.get(name) for name in names})
    pair = secrets.certificate
    keys = secrets.keys
    return {
        "namespace": plan.namespace,
        "release": plan.release.name,
        "override": override_args(plan),
        "models": [_model(plan, door, model) for model in door.models],
        "host": door.host,
        "certificate": None if pair is None else {"chain": pair.chain, "key": pulumi.Output.secret(pair.key)},
        "certificate_secret": door.tls.name if door.tls is not None and door.tls.kind == "secret" else None,
        "issuer": _issuer(door),
        "api_keys": None if keys is None else {name: pulumi.Output.secret(key) for name, key in keys.items()},
        "tokens": _tokens(door, secrets.key_set),
        "requests_per_minute": door.requests_per_minute,
        "client_limits": dict(door.client_limits) or None,
        "load_balancer": load_balancer_args(door.exposure, door.load_balancer, access),
        "control_plane_cidrs": None if plan.control_plane_cidrs is None else list(plan.control_plane_cidrs),
    }


def _model(plan: Plan, door: FrontDoorPlan, behind: FrontDoorModel) -> FrontDoorModelArgs:
    model = next(model for model in plan.models if model.name == behind.name)
    services = _services(plan, model)
    units: list[FrontDoorUnitArgs] = [
        {"service": services[unit], "weight": door.weights.get(unit)} for unit in behind.units
    ]
    return {"name": behind.name, "served_name": behind.served_name, "hosts": list(behind.hosts) or None, "units": units}


def _services(plan: Plan, model: ModelPlan) -> Mapping[str, str]:
    """Services by the names of units; that of all servers where they have no routers."""
    if not model.routed:
        return {model.name: model.name}
    return {unit.name: service_name(unit_name(plan, model, unit)) for unit in model.units}


def _issuer(door: FrontDoorPlan) -> FrontDoorIssuerArgs | None:
    if door.tls is None or door.tls.kind != "issuer":
        return None
    return {"name": door.tls.name, "kind": door.tls.scope}


def _tokens(door: FrontDoorPlan, key_set: str | None) -> FrontDoorTokensArgs | None:
    authentication = door.authentication
    if authentication is None or authentication.kind != "jwt" or key_set is None:
        return None
    return {"issuer": authentication.issuer, "audiences": list(authentication.audiences), "key_set": key_set}


def load_balancer_args(
    exposure: Exposure, given: LoadBalancer, access: ClusterAccess
) -> FrontDoorLoadBalancerArgs | None:
    """A load balancer in the network that the stack creates, unless the stack file says where; None for pods only."""
    if exposure == "cluster":
        return None
    own = access.load_balancers.get(exposure)
    groups: list[pulumi.Input[str]] = [*given.security_group_ids]
    if not groups and own is not None and given.subnet_id is None:
        groups = [own.security_group_id]
    return {
        "public": exposure == "public",
        "subnet_id": given.subnet_id or (own.subnet_id if own else None),
        "security_group_ids": groups or None,
    }
