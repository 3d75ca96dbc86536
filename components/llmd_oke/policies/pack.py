"""The policies as a policy pack of Pulumi's engine: each rule as a policy of pulumi-policy, with its level.

The engine starts a pack as a program of its own (`policies/__main__.py`). Price and settings are read from the stack
file whose name is in the resources' URNs, where the project has it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pulumi_policy as engine
from llmd_base.errors import KitError
from pulumi_policy import policy as engine_policy
from pulumi_policy.deserialize import SPECIAL_SECRET_SIG, SPECIAL_SIG_KEY, deserialize_properties
from pulumi_policy.proxy import UnknownValueError

from llmd_oke.config import stack_file
from llmd_oke.planning import plan_stack_file
from llmd_oke.policies.applied import config_resource, stack_facts
from llmd_oke.policies.organisation import Organisation, PolicyName, read_organisation
from llmd_oke.policies.rules import (
    RESOURCE_RULES,
    STACK_RULES,
    PolicyResource,
    ResourceRule,
    StackFacts,
    StackRule,
    description,
    plain_secrets,
)

PACK = "llmd-oke"
"""Name of the policy pack in Pulumi's engine."""

_LEVELS = {
    "off": engine.EnforcementLevel.DISABLED,
    "advisory": engine.EnforcementLevel.ADVISORY,
    "mandatory": engine.EnforcementLevel.MANDATORY,
}


def serve_policies(project: Path) -> None:
    """Serve the policies of a project to the engine that started this program, until it ends.

    Raises:
        KitError: the policies' file is wrong.
    """
    organisation = read_organisation(project) or Organisation()
    engine_policy.deserialize_properties = public_properties  # pyright: ignore[reportPrivateImportUsage]
    resource_policies = [_resource_policy(name, rule, organisation) for name, rule in RESOURCE_RULES.items()]
    stack_policies = [_stack_policy(name, rule, organisation, project) for name, rule in STACK_RULES.items()]
    settings = _settings_policy(organisation, project)
    engine.PolicyPack(PACK, policies=[*resource_policies, *stack_policies, settings])


def _resource_policy(name: PolicyName, rule: ResourceRule, organisation: Organisation) -> engine.Policy:
    def validate(args: engine.ResourceValidationArgs, report: engine.ReportViolation) -> None:
        resource = PolicyResource(args.resource_type, args.name, known(args.props), args.opts.protect)
        for violation in rule(resource, organisation):
            report(str(violation), None)

    return engine.ResourceValidationPolicy(name, description(name), validate, _LEVELS[organisation.level(name)])


def _stack_policy(name: PolicyName, rule: StackRule, organisation: Organisation, project: Path) -> engine.Policy:
    def validate(args: engine.StackValidationArgs, report: engine.ReportViolation) -> None:
        resources = [
            PolicyResource(item.resource_type, item.name, known(item.props), item.opts.protect)
            for item in args.resources
        ]
        for violation in rule(resources, organisation, _facts(project, args.resources)):
            report(str(violation), None)

    return engine.StackValidationPolicy(name, description(name), validate, _LEVELS[organisation.level(name)])


def _settings_policy(organisation: Organisation, project: Path) -> engine.Policy:
    """Policy `plain-secrets` for the stack file's settings, which are no resource of the engine."""

    def validate(args: engine.StackValidationArgs, report: engine.ReportViolation) -> None:
        stack = _stack(project, args.resources)
        if stack is not None:
            for violation in plain_secrets(config_resource(project, stack), organisation):
                report(str(violation), None)

    level = _LEVELS[organisation.level("plain-secrets")]
    return engine.StackValidationPolicy("plain-secrets-in-settings", description("plain-secrets"), validate, level)


def _facts(project: Path, resources: Sequence[engine.PolicyResource]) -> StackFacts | None:
    """Return the price of a stack of the kit; None for another program's, or for one whose stack file is wrong."""
    stack = _stack(project, resources)
    try:
        return None if stack is None else stack_facts(plan_stack_file(project, stack))
    except KitError:
        return None  # the program itself refuses it, with all problems


def _stack(project: Path, resources: Sequence[engine.PolicyResource]) -> str | None:
    """Return the stack that resources are of, if the project has a file for it."""
    names = {item.urn.split("::")[0].removeprefix("urn:pulumi:") for item in resources}
    return next((name for name in names if stack_file(project, name).is_file()), None)


def public_properties(properties: dict[str, Any], proxy_secrets: bool = False) -> dict[str, Any]:
    """Return properties of the engine as pulumi-policy reads them, without those that are secret: pulumi-policy 1.21
    gives rules the values of secrets and not the mark that they are secret.
    """
    return deserialize_properties(cast("dict[str, Any]", _public(properties)), proxy_secrets)


def _public(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return {key: _public(part) for key, part in items.items() if not _is_secret(part)}
    if isinstance(value, list):
        return [_public(part) for part in cast("list[Any]", value) if not _is_secret(part)]
    return value


def _is_secret(value: Any) -> bool:
    return isinstance(value, dict) and cast("dict[str, Any]", value).get(SPECIAL_SIG_KEY) == SPECIAL_SECRET_SIG


def known(value: Any) -> Any:
    """Return properties as plain data, without values that are unknown until the update."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value)
        pairs = ((key, _item(items, key)) for key in items)
        return {key: part for key, part in pairs if part is not None}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = cast("Sequence[Any]", value)
        return [part for index in range(len(items)) if (part := _item(items, index)) is not None]
    return value


def _item(container: Any, key: Any) -> Any:
    try:
        return known(container[key])
    except UnknownValueError:
        return None
