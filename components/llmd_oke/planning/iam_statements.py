"""The policy statements that serve a need, and who is in the dynamic groups that they speak of."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Template

from llmd_oke.catalogue import iam as facts
from llmd_oke.catalogue.iam import Group, Need, Scope, Statement
from llmd_oke.errors import KitError


@dataclass(frozen=True)
class Variables:
    """What fills in statements: OCIDs, how policies name the dynamic groups, and OCIDs to repeat statements for."""

    values: Mapping[str, str]
    groups: Mapping[Group, str]
    each: Mapping[str, Sequence[str]]


def statements(needs: Iterable[Need], variables: Variables) -> dict[Scope, list[str]]:
    """The statements that serve these needs, by where their policy is attached.

    Raises:
        KitError: a statement has a variable that is not given, such as the cluster's OCID.
    """
    found: dict[Scope, list[str]] = {}
    for need in needs:
        for statement in facts.policies().needs[need].statements:
            found.setdefault(statement.scope, []).extend(_filled_in(statement, need, variables))
    return {scope: list(dict.fromkeys(texts)) for scope, texts in found.items()}


def groups_of(needs: Iterable[Need]) -> list[Group]:
    """The dynamic groups that the statements for these needs speak of."""
    texts = [statement.text for need in needs for statement in facts.policies().needs[need].statements]
    return [group for group in facts.policies().groups if any(f"${group} " in text for text in texts)]


def matching_rule(group: Group, compartment_id: str) -> str:
    """Who is in a dynamic group."""
    return Template(facts.policies().groups[group].matching_rule).substitute(compartment_id=compartment_id)


def _filled_in(statement: Statement, need: Need, variables: Variables) -> Iterator[str]:
    names = {group: f"dynamic-group {name}" for group, name in variables.groups.items()}
    values = {**variables.values, **names}
    text = Template(statement.text).safe_substitute(facts.policies().principals)
    repeated = variables.each.get(statement.each, ()) if statement.each else [""]
    if not repeated:
        raise KitError(f"The need {need} must know {statement.each}.", f"Give it at least one {statement.each}.")
    for ocid in repeated:
        try:
            yield Template(text).substitute({**values, **({statement.each: ocid} if statement.each else {})})
        except KeyError as missing:
            name = missing.args[0]
            raise KitError(f"The need {need} must know {name}.", f"Give {name}.") from missing
