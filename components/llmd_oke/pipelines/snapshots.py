"""Snapshots of a project's stacks: what each one plans, costs, violates and declares, without access to a cloud or
backend.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmd_base.errors import InvalidStack, KitError

from llmd_oke import planning
from llmd_oke.config import stack_file, stacks, yaml_files
from llmd_oke.pipelines.records import (
    NodesOfPool,
    PolicyBreach,
    PricedPart,
    ServersOfRole,
    SnapshotModel,
    Snapshots,
    StackSnapshot,
)
from llmd_oke.pipelines.revisions import REQUIREMENTS
from llmd_oke.planning import ModelPlan, Plan, merge_advice
from llmd_oke.planning.estimates import costs
from llmd_oke.policies.applied import declared_resources, stack_violations
from llmd_oke.policies.organisation import read_organisation


def snapshots(project: Path, commit: str | None) -> Snapshots:
    """Return the snapshots of all stacks that have a file; `commit` is the commit of the folder's files, None if they
    are changed.
    """
    found = tuple(snapshot(project, stack) for stack in stacks(project))
    return Snapshots(commit=commit, requirements=requirements(project), stacks=found)


def requirements(project: Path) -> str:
    """Return a digest of the files that lock the packages with which the project's programs run."""
    files = (project / name for name in REQUIREMENTS)
    return _digest([file.read_text() if file.is_file() else "" for file in files])


def snapshot(project: Path, stack: str) -> StackSnapshot:
    """Return the snapshot of one stack; for a stack that can't be deployed, it has the problems instead."""
    try:
        plan = planning.plan_stack_file(project, stack, nodes_pull=True)
        organisation = read_organisation(project)
    except InvalidStack as refused:
        return _refused(project, stack, [str(problem) for problem in refused.problems])
    except KitError as refused:
        return _refused(project, stack, [refused.message])
    unrendered, resources, digests = "", (), {}
    try:
        resources = declared_resources(project, stack, plan)
        for item in resources:
            if not item.type.startswith(("llmd-oke:", "pulumi:")):
                properties = asdict(item) | {"secret_inputs": sorted(item.secret_inputs)}
                digests[f"{item.type.rsplit(':', 1)[-1]} {item.name}"] = _digest(properties, str(project))
    except KitError as error:
        unrendered, digests = error.message, {"plan": _digest(repr(plan), str(project))}
    violations = None if organisation is None else stack_violations(project, stack, plan, organisation, resources)
    advice = [f"{item.path}: {item.text}" for item in merge_advice(plan.advice) if item.kind == "decision"]
    document: Mapping[str, Any] = yaml_files.read(stack_file(project, stack)).value
    settings = {f"setting {name}": _digest(value) for name, value in document["config"].items()}
    return StackSnapshot(
        stack=stack,
        unrendered=unrendered,
        resources=dict(sorted((digests | settings).items())),
        config_hash=plan.config_hash,
        costs=tuple(PricedPart(part=item.part, usd_per_hour=item.usd_per_hour) for item in costs(plan).parts),
        breaches=None
        if violations is None or organisation is None
        else tuple(
            PolicyBreach(policy=item.policy, level=level, text=str(item))
            for item in violations
            if (level := organisation.level(item.policy)) != "off"
        ),
        advice=tuple(advice),
        entry=_entry(plan),
        models=tuple(map(_model, plan.models)),
        pools=tuple(NodesOfPool(name=pool.name, shape=pool.shape.name, nodes=pool.size) for pool in plan.pools),
        gpus=plan.gpus,
        used_gpus=plan.used_gpus,
    )


def _refused(project: Path, stack: str, problems: Sequence[str]) -> StackSnapshot:
    """Return the snapshot of a stack that can't be deployed. Its file may not be YAML, so its bytes are its digest."""
    content = stack_file(project, stack).read_bytes()
    return StackSnapshot(
        stack=stack, problems=tuple(problems), resources={"stack file": hashlib.sha256(content).hexdigest()}
    )


def _digest(value: object, without: str = "") -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256((text.replace(without, "") if without else text).encode()).hexdigest()[:16]


def _entry(plan: Plan) -> str:
    if not plan.models:
        return ""
    if plan.front_door is not None:
        return f"front door, {plan.front_door.exposure}{', TLS' if plan.front_door.tls else ''}"
    if plan.gateway is not None:
        return f"Gateway {plan.gateway.name}, {plan.gateway.provider.name}"
    return "inside the cluster"


def _model(model: ModelPlan) -> SnapshotModel:
    roles = {role.role: role for role in model.units[0].roles}
    return SnapshotModel(
        name=model.name,
        topology=str(model.topology),
        copies=len(model.units),
        gpus=model.gpus,
        routed=model.routed,
        roles=tuple(
            ServersOfRole(role=name, servers=role.replicas * len(model.units), gpus_each=role.parallelism.gpus)
            for name, role in roles.items()
        ),
    )
