"""Stacks that create their cluster, judged: changes are of the cluster, `stack_changes` of the stack."""

from collections.abc import Mapping

from llmd_base.errors import Problem
from llmd_oke import config
from stack_files import StackObject, created_stack, problems

Changes = Mapping[str, object] | None


def created(*pools: StackObject, stack_changes: Changes = None, **changes: object) -> StackObject:
    """The object of a stack."""
    return created_stack(*pools, cluster=changes, **(stack_changes or {}))


def validated(*pools: StackObject, stack_changes: Changes = None, **changes: object) -> config.StackConfig:
    """The config of a stack."""
    return config.validate(created(*pools, stack_changes=stack_changes, **changes))


def found(*pools: StackObject, stack_changes: Changes = None, **changes: object) -> list[Problem]:
    """Return what is wrong with a stack."""
    result = created(*pools, stack_changes=stack_changes, **changes)
    return problems(*result.pop("models"), **result)


def refusals(*pools: StackObject, stack_changes: Changes = None, **changes: object) -> dict[str, str]:
    """Return what is wrong with a stack, why by path."""
    return {problem.path: str(problem) for problem in found(*pools, stack_changes=stack_changes, **changes)}
