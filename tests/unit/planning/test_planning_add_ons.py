"""Add-ons of the stack file beside those of the GPU stack."""

from typing import Any

import pytest
from created_stacks import refusals, validated
from llmd_oke.config import CreateCluster
from llmd_oke.planning.add_ons import add_ons


def of_add_ons(*names: str, **stack_changes: Any) -> dict[str, str]:
    return refusals(stack_changes=stack_changes, addOns=[{"name": name} for name in names])


def wanted(*written: dict[str, Any]):
    config = validated(addOns=list(written))
    assert isinstance(config.cluster, CreateCluster)
    return {add_on.name: add_on for add_on in add_ons(config, config.cluster)}


def test_an_add_on_is_asked_for_once():
    found = of_add_ons("NodeProblemDetector", "NodeProblemDetector")
    assert "cluster.addOns[0] asks for it already" in found["cluster.addOns[1].name"]


@pytest.mark.parametrize(
    ("name", "stack"),
    [("AmdGpuPlugin", "helm-operator"), ("AmdGpuOperator", "helm-operator"), ("AmdGpuOperator", "oke-plugin")],
)
def test_gpus_have_one_owner(name: str, stack: str):
    assert f"gpuStack is {stack}" in of_add_ons(name, gpuStack=stack)["cluster.addOns[0].name"]


def test_what_the_kit_installs_is_no_add_on_too():
    assert "installs cert-manager itself" in of_add_ons("CertManager")["cluster.addOns[0].name"]


@pytest.mark.parametrize(
    ("name", "stack"),
    [("NodeProblemDetector", "helm-operator"), ("CertManager", "oke-plugin"), ("AmdGpuPlugin", "oke-plugin")],
)
def test_other_add_ons_are_accepted(name: str, stack: str):
    assert of_add_ons(name, gpuStack=stack) == {}


def test_a_pinned_add_on_keeps_the_settings_that_the_gpu_stack_needs():
    before = wanted()["NvidiaNetworkOperator"]

    pinned = wanted({"name": "NvidiaNetworkOperator", "version": "v26.1.0", "configurations": {"more": "1"}})

    found = pinned["NvidiaNetworkOperator"]
    assert (found.version, found.configurations) == ("v26.1.0", {**before.configurations, "more": "1"})
    assert list(pinned) == ["NodeFeatureDiscovery", "NvidiaNetworkOperator"]


def test_an_add_on_of_the_stack_file_comes_after_those_that_are_needed():
    assert list(wanted({"name": "NodeProblemDetector"}))[-1] == "NodeProblemDetector"
