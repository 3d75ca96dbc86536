"""Bills of materials, held to CycloneDX' own schema."""

import json
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from llmd_oke import planning
from llmd_oke.cli.main import app
from llmd_oke.operations.sbom import bill_of_materials
from llmd_oke.planning.container_images import chart_archives, images_of
from packageurl import PackageURL
from stack_files import PROJECT, cluster_layer, created_stack, model, read, stack
from typer.testing import CliRunner

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
STACKS = {
    **{name: read(name) for name in ("rehearsal", "small")},
    "created-with-monitoring": created_stack(monitoring="install"),
    "cluster-layer": cluster_layer(monitoring="install"),
    "private-registry": stack(model("2p-tp1-2d-tp1"), registryMirror={"prefix": "iad.ocir.io/ai/mirror"}),
    "without-digests": stack(model("2p-tp1-2d-tp1"), release="llm-d-0.7.0"),
}
"""All kinds of parts that a stack may have."""

SCHEMA = JsonStrictValidator(SchemaVersion.V1_6)


@cache
def planned(name: str) -> planning.Plan:
    return planning.plan_object(STACKS[name])


@cache
def bill(name: str) -> dict[str, Any]:
    return bill_of_materials(planned(name), name, NOON)


def components(of: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [item for item in of["components"] if item["type"] == kind]


@pytest.mark.parametrize("name", STACKS)
def test_a_stacks_sbom_is_valid_by_the_schema_of_cyclonedx(name: str):
    assert SCHEMA.validate_str(json.dumps(bill(name))) is None


def test_the_schema_check_of_the_sbom_detects_an_unknown_field():
    assert SCHEMA.validate_str(json.dumps({**bill("rehearsal"), "typo": 1})) is not None


@pytest.mark.parametrize("name", STACKS)
def test_references_and_package_urls_in_the_sbom_are_unique_known_and_can_be_parsed(name: str):
    of = bill(name)
    references = [item["bom-ref"] for item in of["components"]]
    assert len(set(references)) == len(references)
    known = {*references, of["metadata"]["component"]["bom-ref"]}
    asked = {ref for edge in of["dependencies"] for ref in (edge["ref"], *edge["dependsOn"])}
    asked |= {ref for part in of["compositions"] for ref in part["dependencies"]}
    assert asked - known == set()
    assert all(PackageURL.from_string(item["purl"]).name for item in of["components"] if "purl" in item)


@pytest.mark.parametrize("name", STACKS)
def test_every_image_and_chart_of_a_stack_is_in_its_sbom_with_its_digest(name: str):
    plan, of = planned(name), bill(name)
    listed = {(item["name"], item.get("version")): item for item in of["components"]}
    for used in images_of(plan):
        item = listed[f"{used.image.registry}/{used.image.repository}", used.image.tag]
        digest = (used.image.digest or "").removeprefix("sha256:")
        assert [entry["content"] for entry in item.get("hashes", [])] == ([digest] if digest else [])
    for chart in chart_archives(plan):
        assert listed[chart.reference, chart.version]["hashes"] == [{"alg": "SHA-256", "content": chart.sha256}]


@pytest.mark.parametrize("commit", [None, "1" * 40], ids=["the catalogue's commit", "the stack file's commit"])
def test_the_sbom_names_models_by_repository_and_commit(commit: str | None):
    pinned = {"prewarm": {"revisions": {"gpt-oss-120b": commit}}} if commit else {}
    plan = planning.plan_object(stack(model("agg-tp1-8r"), storage={"modelCache": {"kind": "node-disk"}, **pinned}))
    (listed,) = components(bill_of_materials(plan, "s", NOON), "machine-learning-model")
    facts = plan.models[0].model
    assert (listed["name"], listed["version"]) == (facts.repository, commit or facts.revision)
    assert listed["purl"] == f"pkg:huggingface/{facts.repository}@{commit or facts.revision}"


def test_the_sbom_of_a_created_cluster_has_node_images_add_ons_and_version():
    of = bill("created-with-monitoring")
    assert [item["version"] for item in components(of, "platform")] == ["v1.34.2"]
    assert {item["name"] for item in components(of, "operating-system")} >= {"ocid1.image.oc1.iad.there"}
    assert any(item["bom-ref"].startswith("oke-add-on:") for item in of["components"])
    assert not components(bill("rehearsal"), "operating-system")


def test_charts_in_the_sbom_depend_on_their_images():
    of = bill("created-with-monitoring")
    needs = {edge["ref"]: edge["dependsOn"] for edge in of["dependencies"]}
    (chart,) = [ref for ref in needs if ref.startswith("pkg:generic/kube-prometheus-stack@87.2.1?checksum=sha256:")]
    assert any("repository_url=docker.io/grafana/grafana" in ref for ref in needs[chart])
    (manager,) = [ref for ref in needs if "charts/cert-manager" in ref]
    assert len(needs[manager]) == 5


def test_the_kits_python_packages_in_the_sbom_are_the_installed_ones():
    of = bill("rehearsal")
    packages = {item["name"]: item["version"] for item in of["components"] if item["bom-ref"].startswith("pkg:pypi/")}
    assert packages["pulumi"] == metadata.version("pulumi")
    assert {"llmd-oke", "pydantic", "pydantic-core", "pulumi-oci"} <= packages.keys()
    assert "pytest" not in packages
    needs = {edge["ref"]: edge["dependsOn"] for edge in of["dependencies"]}
    assert f"pkg:pypi/pydantic-core@{packages['pydantic-core']}" in needs[f"pkg:pypi/pydantic@{packages['pydantic']}"]


def test_the_sbom_says_that_contents_of_images_are_left_out():
    of = bill("rehearsal")
    (part,) = of["compositions"]
    assert part["aggregate"] == "incomplete"
    assert {item["bom-ref"] for item in components(of, "container")} <= set(part["dependencies"])


def test_with_a_private_registry_the_sbom_says_where_images_are_pulled_from():
    facts = [item["properties"] for item in components(bill("private-registry"), "container")]
    pulled = [fact["value"] for of in facts for fact in of if fact["name"] == "llmd-oke:pulled-from"]
    assert len(pulled) == len(facts)
    assert all(text.startswith("iad.ocir.io/ai/mirror/") for text in pulled)


def test_only_sboms_of_equal_stacks_have_equal_serial_numbers():
    later = bill_of_materials(planned("rehearsal"), "rehearsal", NOON.replace(hour=13))
    assert later["serialNumber"] == bill("rehearsal")["serialNumber"] != bill("small")["serialNumber"]
    assert later["metadata"]["timestamp"] != bill("rehearsal")["metadata"]["timestamp"]


def test_the_sbom_command_prints_the_sbom_or_writes_it_into_a_file(tmp_path: Path):
    arguments = ["images", "sbom", "--stack", "rehearsal", "--project", str(PROJECT)]
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False).output
    CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "bill.json")], catch_exceptions=False)
    written = json.loads((tmp_path / "bill.json").read_text())
    assert written["serialNumber"] == json.loads(printed)["serialNumber"]
