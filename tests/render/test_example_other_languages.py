"""The examples in TypeScript and YAML, held to the components' schema and to the example in Python."""

import json
import re
import runpy
from typing import Any

import pytest
import yaml
from llmd_oke.testing import declared
from render_support import PROJECT

SCHEMA = json.loads((PROJECT / "components" / "schema.json").read_text())
YAML: dict[str, Any] = yaml.safe_load((PROJECT / "examples" / "yaml" / "Pulumi.yaml").read_text())
COMPONENTS = {name: item for name, item in YAML["resources"].items() if item["type"].startswith("llmd-oke:")}


def component(item: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["resources"]["llmd-oke:index:" + item["type"].rpartition(":")[2]]


@pytest.mark.parametrize("name", COMPONENTS)
def test_component_arguments_in_the_yaml_example_are_defined_in_the_package_schema(name: str):
    known = component(COMPONENTS[name])
    given = COMPONENTS[name]["properties"]
    assert set(known["requiredInputs"]) <= given.keys() <= known["inputProperties"].keys()
    for key, value in given.items():
        if isinstance(value, dict):
            inner = SCHEMA["types"][known["inputProperties"][key]["$ref"].removeprefix("#/types/")]
            assert set(inner["required"]) <= value.keys() <= inner["properties"].keys()


def test_the_yaml_example_reads_only_outputs_that_its_components_have():
    read = re.findall(r"\$\{(\w+)\.(\w+)\}", (PROJECT / "examples" / "yaml" / "Pulumi.yaml").read_text())
    assert read
    assert [(name, key) for name, key in read if key not in component(COMPONENTS[name])["properties"]] == []


def test_the_examples_in_other_languages_declare_what_the_one_in_python_does():
    program = PROJECT / "examples" / "import-component" / "__main__.py"
    made = declared(lambda: runpy.run_path(str(program), run_name="__main__"))
    kinds = sorted(item["type"].rpartition(":")[2] for item in COMPONENTS.values())
    assert [len(made.of_type(f"llmd-oke:index:{kind}")) for kind in kinds] == [1, 1, 1]
    typescript = (PROJECT / "examples" / "typescript" / "index.ts").read_text()
    assert sorted(re.findall(r"new llmd\.(\w+)\(", typescript)) == kinds


@pytest.mark.parametrize("name", ["typescript", "yaml"])
def test_examples_in_other_languages_take_the_package_and_versions_of_this_checkout(name: str):
    folder = PROJECT / "examples" / name
    project = yaml.safe_load((folder / "Pulumi.yaml").read_text())
    assert (folder / project["packages"]["llmd-oke"]).resolve() == PROJECT / "components"
    if name == "typescript":
        locked = dict(
            re.findall(r"^(pulumi(?:-kubernetes)?)==(\S+)", (PROJECT / "requirements.lock").read_text(), re.MULTILINE)
        )
        packages = json.loads((folder / "package.json").read_text())["dependencies"]
        assert (packages["@pulumi/pulumi"], packages["@pulumi/kubernetes"]) == tuple(locked.values())
