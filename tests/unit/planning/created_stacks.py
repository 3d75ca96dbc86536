"""Stacks that create their cluster, as objects, with what a test wants to be different."""

from typing import Any

from llmd_oke import config
from stacks_for_tests import problems, stack

COMPARTMENT = "ocid1.compartment.oc1..cluster"
TENANCY = "ocid1.tenancy.oc1..tenancy"


def ocid(kind: str, name: str = "there") -> str:
    return f"ocid1.{kind}.oc1.iad.{name}"


def cluster(**changes: Any) -> dict[str, Any]:
    return {
        "mode": "create",
        "name": "prod",
        "region": "us-ashburn-1",
        "compartmentId": COMPARTMENT,
        "tenancyId": TENANCY,
        "kubernetesVersion": "v1.34.2",
        **changes,
    }


def gpu_pool(**changes: Any) -> dict[str, Any]:
    return {
        "name": "mi300x",
        "shape": "BM.GPU.MI300X.8",
        "size": 9,
        "availabilityDomain": "Uocm:US-ASHBURN-AD-1",
        "image": {"ocid": ocid("image")},
        **changes,
    }


def created(*pools: dict[str, Any], stack_changes: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The object of a stack; `changes` are of its cluster."""
    result = stack(**(stack_changes or {}))
    return {**result, "cluster": cluster(**changes), "gpuPools": list(pools) or [gpu_pool()]}


def validated(
    *pools: dict[str, Any], stack_changes: dict[str, Any] | None = None, **changes: Any
) -> config.StackConfig:
    """The config of a stack; `changes` are of its cluster."""
    return config.validate(created(*pools, stack_changes=stack_changes, **changes))


def refusals(*pools: dict[str, Any], stack_changes: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    """What is wrong with a stack, why by path."""
    result = created(*pools, stack_changes=stack_changes, **changes)
    return {problem.path: str(problem) for problem in problems(*result.pop("models"), **result)}
