"""Stacks that create their cluster, judged: changes are of the cluster, `stack_changes` of the stack."""

from collections.abc import Mapping

from llmd_oke import config
from stack_files import StackObject, created_stack, problems


def created(*pools: StackObject, stack_changes: Mapping[str, object] | None = None, **changes: object) -> StackObject:
    """The object of a stack."""
    return created_stack(*pools, cluster=changes, **(stack_changes or {}))


def validated(
    *pools: StackObject, stack_changes: Mapping[str, object] | None = None, **changes: object
) -> config.StackConfig:
    """The config of a stack."""
    return config.validate(created(*pools, stack_changes=stack_changes, **changes))


def refusals(
    *pools: StackObject, stack_changes: Mapping[str, object] | None = None, **changes: object
) -> dict[str, str]:
    """Return what is wrong with a stack, why by path."""
    result = created(*pools, stack_changes=stack_changes, **changes)
    return {problem.path: str(problem) for problem in problems(*result.pop("models"), **result)}
