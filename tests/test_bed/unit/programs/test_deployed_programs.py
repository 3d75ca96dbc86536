"""Versions that stacks deploy, held to those that rehearsals and tests run."""

import re
from pathlib import Path
from typing import Any

import pytest
import stack_files
from llmd_oke import catalogue
from llmd_oke.catalogue.monitoring import monitoring
from llmd_oke.catalogue.operators import operator
from llmd_oke.catalogue.releases import ImageProgram
from llmd_oke.values import values_folder
from llmd_rehearsal import program_definitions
from llmd_rehearsal.autoscaling import keda_parts
from llmd_rehearsal.cluster_plan import programs_in_pods
from llmd_rehearsal.front_door import gateway_parts
from llmd_rehearsal.inventory import (
    BEHIND_GATEWAY,
    DISCOVERING,
    FOLLOWING,
    GROUPING,
    IN_PODS,
    WATCHING,
    Inventory,
    ReleaseChoice,
    choose_release,
    deployed_versions,
)
from llmd_rehearsal.program_definitions import ProgramDefinition, pinned_modules
from llmd_rehearsal.programs import LocalProgram

PROGRAMS = program_definitions.definitions().programs
EVERYWHERE = sorted({*IN_PODS, *BEHIND_GATEWAY, *WATCHING, *FOLLOWING, *GROUPING, *DISCOVERING, "promtool"})


def rehearsed(definition: ProgramDefinition) -> set[str]:
    """The versions that `tools/` or a Python package has."""
    return set(definition.builds) or {definition.version}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_programs_are_rehearsed_in_their_deployed_version_or_listed_as_different(name: str):
    deployed = set(deployed_versions().get(name, {}).values())
    assert deployed - rehearsed(PROGRAMS[name]) == set(PROGRAMS[name].differs)
    assert bool(deployed) != bool(PROGRAMS[name].not_deployed)


def test_the_list_of_deployed_versions_has_only_programs_that_stacks_deploy():
    assert set(deployed_versions()) <= set(EVERYWHERE)
    others = [name for name, item in PROGRAMS.items() if (item.differs or item.not_deployed) and name not in EVERYWHERE]
    assert others == []


def test_rehearsals_run_envoy_picker_and_sidecar_in_the_default_releases_versions():
    current = catalogue.default_release()
    assert not current.images_gone
    for name in IN_PODS:
        versions = {version for where, version in deployed_versions()[name].items() if where == current.name}
        assert versions
        assert versions <= rehearsed(PROGRAMS[name])


def test_the_endpoint_picker_and_the_routing_sidecar_have_the_same_builds():
    assert PROGRAMS["epp"].builds == PROGRAMS["pd-sidecar"].builds


def test_the_rehearsed_keda_has_the_deployed_versions_crds_and_images():
    version = PROGRAMS["keda-operator"].version
    assert keda_parts().definitions.version == version
    images = re.findall(r"'(ghcr.io/kedacore/\S+)'", str(keda_parts().objects))
    assert {image.rpartition(":")[2] for image in images} == {version.removeprefix("v")}


def test_the_rehearsed_envoy_gateway_has_the_deployed_versions_crds_and_images():
    version, parts = PROGRAMS["envoy-gateway"].version, gateway_parts()
    assert PROGRAMS["inference-pools"].version == version
    assert parts.title == f"Envoy Gateway {version}"
    (module,) = PROGRAMS["envoy-gateway"].ask.go_modules
    assert [item.version for item in parts.definitions if item.module == module] == [version]
    images = re.findall(r"docker.io/envoyproxy/gateway:(\S+?)[\"']", str(parts.objects))
    assert len(images) == 3  # of the shutdown manager, the job with its certificates, and the controller
    assert set(images) == {version}


def test_the_rehearsed_prometheus_operator_has_the_deployed_crds_and_image():
    images = [item.image for item in operator("kube-prometheus-stack").images]
    (deployed,) = {image.reference for image in images if image.repository.endswith("/prometheus-operator")}
    version = deployed.rpartition(":")[2]
    definitions = monitoring().definitions
    assert definitions.version == version
    assert pinned_modules()[definitions.module].versions.keys() == {version}
    chart = values_folder() / "rehearsal/charts/kube-prometheus-stack/templates/operator.yaml"
    assert f"image: {deployed}\n" in chart.read_text()


def told(changes: dict[str, Any], **versions: str) -> list[str]:
    """Return what a rehearsal of a stack says of its versions, with those programs in other versions than deployed."""
    plan = stack_files.plan(stack_files.model(), **changes)
    older = catalogue.release("llm-d-0.6.0")
    assert older is not None
    choice = ReleaseChoice(plan.release, older if "epp" in versions else plan.release)
    names = (*programs_in_pods(plan), *WATCHING)
    deployed = {"epp": "v0.10.0", "pd-sidecar": "v0.10.0", "prometheus": "v0.312.0"}
    located = {
        name: LocalProgram(name, Path(name), versions.get(name, deployed.get(name, PROGRAMS[name].version)), "PATH")
        for name in names
    }
    return [str(item) for item in Inventory(choice, located).version_differences(plan)]


def test_a_rehearsal_reports_each_program_with_another_version_than_deployed():
    assert told({}) == []
    assert told({}, epp="v0.7.1") == ["epp v0.7.1 in place of v0.10.0: llm-d-0.6.0 stands in for llm-d-0.9.0"]
    (watched,) = told({"monitoring": "install"}, prometheus="v0.330.0")
    assert watched == "prometheus v0.330.0 in place of v0.312.0: from PATH"


def test_an_envoy_image_of_the_users_own_is_reported_as_not_rehearsed():
    override = {"proxyImage": "docker.io/envoyproxy/envoy:distroless-v1.39.0"}
    expected = "envoy v1.40.0 in place of v1.39.0: `override.proxyImage` of the stack file"
    assert told({"override": override}) == [expected]


def test_a_releases_second_program_is_not_looked_for_once_the_first_is_missing():
    asked: list[str] = []

    def missing(program: ImageProgram) -> str | None:
        asked.append(f"{program.name} {program.version}")
        return "it can't be reached" if program.version == desired.endpoint_picker.program.version else None

    desired = catalogue.default_release()
    chosen = choose_release(desired, missing)
    assert chosen.because == "it can't be reached"
    version = desired.endpoint_picker.program.version
    assert [words for words in asked if words.endswith(version)] == [f"epp {version}"]
