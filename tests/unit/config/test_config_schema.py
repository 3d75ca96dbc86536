"""The JSON Schema for editors: fresh, and of one mind with the code."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import stack_files
from llmd_base.errors import InvalidStack
from llmd_oke import config
from llmd_oke.cli.main import app
from llmd_oke.config.schema import stack_file_schema
from llmd_oke.values import read_yaml
from project_entries import model_entry, write_entry
from stack_files import model, stack
from typer.testing import CliRunner

STACKS = Path(__file__).parents[3] / "stacks"
LONG = {"prefill": {"replicas": 1, "tensorParallelSize": 1}, "decode": {"replicas": 1, "tensorParallelSize": 2}}


def document(**changes: Any) -> dict[str, Any]:
    return stack_files.document(stack(**changes), {"llmd-oke:hfToken": {"secure": "x"}}, encryptionsalt="y")


VALIDATORS = [jsonschema.Draft202012Validator, jsonschema.Draft7Validator]


@pytest.fixture(name="schema", scope="module")
def schema_fixture() -> dict[str, Any]:
    return stack_file_schema()


def test_the_committed_stack_file_schema_is_up_to_date(schema: dict[str, Any]):
    written = json.dumps(schema, indent=2) + "\n"
    assert (STACKS / "schema.json").read_text() == written, "stale: llmd-oke schema > stacks/schema.json"


@pytest.mark.parametrize("validator", VALIDATORS)
def test_the_stack_file_schema_is_valid_json_schema(schema: dict[str, Any], validator: Any):
    validator.check_schema(schema)


@pytest.mark.parametrize("validator", VALIDATORS)
def test_every_stack_file_is_valid_by_the_schema_and_refers_to_it(schema: dict[str, Any], validator: Any):
    for path in sorted(STACKS.glob("Pulumi.*.yaml")):
        validator(schema).validate(read_yaml(path))
        assert path.read_text().startswith("# yaml-language-server: $schema=./schema.json\n")


@pytest.mark.parametrize("validator", VALIDATORS)
@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"models": [model(LONG)]}, True),
        ({"models": [model({"aggregated": {"replicas": 1, "tensorParallelSize": 1}})]}, True),
        ({"models": [model(slo=None)]}, True),
        ({"models": [model(engine={"env": {"A": "1"}, "extraArgs": ["--seed=1"]})]}, True),
        ({"models": [model("8p")]}, False),
        ({"models": [model("08p-tp1-2d-tp4")]}, False),
        ({"models": [model({"prefill": {"replicas": 1}})]}, False),
        ({"models": [model(colour="red")]}, False),
        ({"models": []}, False),
        ({"smoke": {"requests": "8"}}, False),
        ({"gpu_pools": []}, False),
        ({"namespace": "A b"}, False),
    ],
)
def test_the_json_schema_and_the_parser_accept_and_refuse_the_same_stack_files(
    schema: dict[str, Any], changes: dict[str, Any], good: bool, validator: Any
):
    assert validator(schema).is_valid(document(**changes)) is good
    if good:
        config.parse(document(**changes))
    else:
        with pytest.raises(InvalidStack):
            config.parse(document(**changes))


BASE = {"base": "shared.yaml"}


@pytest.mark.parametrize("validator", VALIDATORS)
@pytest.mark.parametrize(
    ("written", "good"),
    [
        (BASE, True),
        ({**BASE, "cluster": {"kubeconfigContext": "mine"}, "smoke": {"thresholds": {"maxFailures": 1}}}, True),
        (
            {**BASE, "gpuPools": {"mi300x": {"size": 2}}, "models": {"chat": {"slo": {"ttftMs": 9}}, "code": None}},
            True,
        ),
        ({**BASE, "rdma": None, "slo": None}, False),
        ({**BASE, "rdma": None}, True),
        ({**BASE, "models": [model()]}, True),
        ({**BASE, "models": [{"model": "gpt-oss-120b"}]}, False),
        ({**BASE, "gpuPools": {"mi300x": {"size": "2"}}}, False),
        ({**BASE, "gpuPools": {"mi300x": {"sze": 2}}}, False),
        ({"base": "../shared.yaml"}, False),
        ({"base": "Pulumi.prod.yaml"}, False),
        ({"smoke": {"requests": 8}}, False),
    ],
)
def test_the_schema_requires_no_key_of_a_stack_file_that_has_a_base_file(
    schema: Any, written: Any, good: bool, validator: Any
):
    assert validator(schema).is_valid(stack_files.document(written)) is good


@pytest.mark.parametrize("validator", VALIDATORS)
@pytest.mark.parametrize(
    ("written", "good"), [(stack(), True), ({}, True), ({"smoke": {"requests": "8"}}, False), ({"stack": {}}, False)]
)
def test_a_base_file_is_valid_by_the_schema_if_it_has_only_keys_of_stack_files(
    schema: Any, written: Any, good: bool, validator: Any
):
    assert validator(schema).is_valid(written) is good


def test_every_key_of_the_schema_has_a_description(schema: dict[str, Any]):
    for name, part in schema["$defs"].items():
        for key, described in part.get("properties", {}).items():
            text = json.dumps(described)
            assert "description" in text or "$ref" in text, f"{name}.{key}"


def test_the_schema_suggests_models_of_the_projects_and_of_the_kits_catalogue(tmp_path: Path):
    write_entry(tmp_path, "models/mine", model_entry("mine"))
    printed = CliRunner().invoke(app, ["schema", "--project", str(tmp_path)])
    definitions = json.loads(printed.stdout)["$defs"]
    assert {"mine", "gpt-oss-120b"} <= set(definitions["Model"]["properties"]["model"]["examples"])
    assert "examples" not in definitions["GpuPool"]["properties"]["shape"]
