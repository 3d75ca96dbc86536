"""Evaluation of policies without a Pulumi engine, for `check` and pipelines, on the resources that a
program declares.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from llmd_base.errors import InvalidStack, Problem

from llmd_oke.catalogue.operations import prices
from llmd_oke.config import effective, locate, setting_names, settings
from llmd_oke.config.front_door import SecretCertificate
from llmd_oke.config.yaml_files import value_at
from llmd_oke.gitops.rendering import declarations
from llmd_oke.planning import Advice, Plan
from llmd_oke.planning.estimates import costs
from llmd_oke.policies.organisation import Organisation
from llmd_oke.policies.rules import CONFIG, PolicyResource, StackFacts, Violation, violations
from llmd_oke.program.declare import Declared


def judged_plan(project: Path, stack: str, plan: Plan, organisation: Organisation) -> Plan:
    """Return the plan with violations of advisory policies added to its advice.

    Raises:
        InvalidStack: the stack violates mandatory policies; carries every violation.
    """
    found = stack_violations(project, stack, plan, organisation, declared_resources(project, stack, plan))
    written = effective(project, stack).value
    problems = [
        Problem(
            item.key,
            value_at(written, item.key) if item.key else None,
            item.accepted,
            f"policy {item.policy}: {item.resource}: {item.found}",
        )
        for item in found
        if organisation.level(item.policy) == "mandatory"
    ]
    if problems:
        raise InvalidStack(locate(problems, project, stack), "policies refuse the stack")
    return replace(plan, advice=(*plan.advice, *_advice(found, organisation)))


def declared_resources(project: Path, stack: str, plan: Plan) -> tuple[Declared, ...]:
    """Return the resources that a stack's program declares, with placeholders for secrets and for values that only OCI
    knows.

    Raises:
        KitError: the program refuses the stack, or can't be declared here.
    """
    return declarations(project, stack, _without_secrets(plan), {}, rehearsed=True)


def stack_violations(
    project: Path, stack: str, plan: Plan, organisation: Organisation, declared: Sequence[Declared]
) -> list[Violation]:
    """Return a stack's violations of all policies that aren't off, by its plan, its stack file and its declared
    resources.
    """
    resources = [*map(policy_resource, declared), config_resource(project, stack)]
    return list(violations(resources, organisation, stack_facts(plan)))


def policy_resource(declared: Declared) -> PolicyResource:
    """Return a declared resource as policies see it."""
    return PolicyResource(
        declared.type, declared.name, declared.inputs, declared.protect, secrets=declared.secret_inputs
    )


def config_resource(project: Path, stack: str) -> PolicyResource:
    """Return the settings in a stack file other than `llmd-oke:stack` as a resource for policies, without encrypted
    values.

    Raises:
        KitError: the stack file can't be read, or is not YAML.
    """
    hidden = setting_names(project, stack) - settings(project, stack).keys()
    return PolicyResource(CONFIG, stack, settings(project, stack), secrets=frozenset(hidden))


def stack_facts(plan: Plan) -> StackFacts:
    """Return the facts about a stack that policies use in addition to its resources: whether its front door
    authenticates clients, and its list price for the longest month, with the parts whose price is unknown.
    """
    cost = costs(plan)
    unknown = tuple(part.part for part in cost.parts if part.usd_per_hour is None)
    return StackFacts(cost.usd_per_hour * prices().hours_per_month, unknown, plan.signed_in)


def _without_secrets(plan: Plan) -> Plan:
    """Return the plan with a front door that can be declared without its secrets: that of anybody, as whether clients
    sign in is among the facts, and with a certificate from a Secret.
    """
    door = plan.front_door
    if door is None:
        return plan
    tls = door.tls
    if tls is not None and tls.kind == "config":
        tls = SecretCertificate(kind="secret", name="certificate")
    limits = replace(door.limits, models=None)
    anybody = replace(
        door, authentication=None, cache_isolation="none", clients={}, priorities={}, limits=limits, tls=tls
    )
    return replace(plan, front_door=anybody)


def _advice(found: Sequence[Violation], organisation: Organisation) -> Iterator[Advice]:
    """Yield advice for each breach of an advisory policy; breaches that differ in the resource alone are one."""
    alike: dict[tuple[str, str, str, str], list[Violation]] = {}
    for item in found:
        if organisation.level(item.policy) == "advisory":
            alike.setdefault((item.policy, item.key, item.found, item.accepted), []).append(item)
    for (policy, key, fault, accepted), items in alike.items():
        more = f" and {len(items) - 1} more" if len(items) > 1 else ""
        text = f"{items[0].resource}{more}: {fault}; accepted: {accepted}"
        yield Advice(key or f"policy {policy}", text if not key else f"policy {policy}: {text}")
