"""Deprecated arguments of components: what Pulumi warns of, and what the package's schema says of them."""

from collections.abc import Callable

import llmd_oke
import pulumi
import pytest
from llmd_base.errors import KitError
from llmd_oke import AggregatedUnit, ModelScaling, objects, package
from llmd_oke.config.deprecated_keys import DeprecatedArgument, deprecated_arguments
from llmd_oke.testing import declared

ROW = {"since": "0.1.0", "removed_in": "9.0.0"}
RDMA = DeprecatedArgument(types=("AggregatedUnitArgs",), argument="rdma", replacement="virtual_functions", **ROW)
SURGE = DeprecatedArgument(types=("ServersArgs",), argument="max_surge", replacement="max_unavailable", **ROW)
LEAST = DeprecatedArgument(types=("ScaledServersArgs",), argument="min_replicas", by_hand="a schedule", **ROW)
TOLD = "deprecated since 0.1.0, and refused from 9.0.0 on"

Warnings = Callable[[Callable[[], object]], list[str]]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Warnings:
    """A function that declares a program and returns what it is warned of, where these arguments are deprecated."""
    told: list[str] = []
    monkeypatch.setattr(objects, "deprecated_arguments", lambda: (RDMA, SURGE, LEAST))
    monkeypatch.setattr(pulumi.log, "warn", told.append)

    def warnings_of(program: Callable[[], object]) -> list[str]:
        declared(program)
        return told

    return warnings_of


def unit(**servers: int) -> AggregatedUnit:
    return AggregatedUnit(
        "m",
        {
            "release": "llm-d-0.9.0",
            "model": "gpt-oss-120b",
            "shape": "BM.GPU.MI300X.8",
            "namespace": "chat",
            "service_account": "model-server",
            "servers": {"replicas": 1, "tensor_parallel_size": 1, **servers},
            "rdma": False if servers else None,
        },
    )


def test_components_warn_of_deprecated_arguments_and_of_those_inside_others(warnings: Warnings):
    assert warnings(lambda: unit(max_surge=1)) == [
        f"AggregatedUnit: servers.max_surge is {TOLD}: it is max_unavailable now.",
        f"AggregatedUnit: rdma is {TOLD}: it is virtual_functions now.",
    ]


def test_components_without_deprecated_arguments_give_no_warning(warnings: Warnings):
    assert warnings(unit) == []


def test_components_warn_of_deprecated_arguments_inside_a_map_of_arguments(warnings: Warnings):
    servers = {"decode": {"min_replicas": 1, "max_replicas": 2}}
    args = {"namespace": "chat", "unit": "m", "servers": servers}
    assert warnings(lambda: ModelScaling("m", args)) == [
        f"ModelScaling: servers.min_replicas is {TOLD}: it is a schedule now.",
    ]


def test_a_removed_argument_is_refused_with_its_replacement(monkeypatch: pytest.MonkeyPatch):
    removed = RDMA.model_copy(update={"removed_in": "0.1.0"})
    monkeypatch.setattr(objects, "deprecated_arguments", lambda: (removed,))
    with pytest.raises(KitError, match=r"no argument rdma from 0\.1\.0 on.") as refused:
        declared(lambda: unit(max_surge=1))
    assert refused.value.remedy == "It is virtual_functions now."


def test_the_package_calls_a_deprecated_argument_deprecated_in_its_schema(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "deprecated_arguments", lambda: (RDMA, SURGE))
    schema = package.schema()
    of_unit = schema["resources"]["llmd-oke:index:AggregatedUnit"]["inputProperties"]
    assert of_unit["rdma"]["deprecationMessage"] == f"{TOLD}: it is virtualFunctions now."
    of_servers = schema["types"]["llmd-oke:index:ServersArgs"]["properties"]
    assert of_servers["maxSurge"]["deprecationMessage"] == f"{TOLD}: it is maxUnavailable now."
    others = [item for item in schema["resources"].values() if item["inputProperties"] is not of_unit]
    assert not [item for item in others if "deprecationMessage" in str(item["inputProperties"])]


@pytest.mark.parametrize("entry", [RDMA, SURGE, LEAST, *deprecated_arguments()], ids=lambda entry: entry.argument)
def test_every_deprecated_arguments_replacement_is_an_argument_of_the_same_types(entry: DeprecatedArgument):
    assert bool(entry.replacement) != bool(entry.by_hand)
    for name in entry.types:
        known = getattr(llmd_oke, name).__annotations__
        assert (entry.argument in known) == entry.works
        assert entry.replacement is None or entry.replacement in known
