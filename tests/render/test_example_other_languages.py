"""The examples in TypeScript and YAML, held to the components' schema and to the examples in Python."""

import json
import re
import runpy
from functools import partial
from typing import Any

import pytest
from llmd_oke.testing import declared
from llmd_oke.values import read_yaml
from render_support import PROJECT
from test_example_second_model import FirstStack

EXAMPLES = PROJECT / "examples"
SCHEMA = json.loads((PROJECT / "components" / "schema.json").read_text())
PYTHON = {
    "typescript": "import-component",
    "yaml": "import-component",
    "existing-cluster/typescript": "existing-cluster",
    "existing-cluster/yaml": "existing-cluster",
    "second-model/typescript": "second-model",
    "second-model/yaml": "second-model",
}
"""The example in Python that each one in another language repeats."""

IN_YAML = [name for name in PYTHON if name.endswith("yaml")]
CONFIG = {"serving:clusterId": "ocid1.cluster.oc1.iad.there", "serving:kubeconfig": "of the cluster"}
OPTIONAL = {"kubeconfig"}
"""Outputs that examples in YAML have not, as YAML has no optional values."""


def project(name: str) -> dict[str, Any]:
    return read_yaml(EXAMPLES / name / "Pulumi.yaml")


def components(name: str) -> dict[str, dict[str, Any]]:
    """The components that an example in YAML declares, by their keys."""
    return {key: item for key, item in project(name)["resources"].items() if item["type"].startswith("llmd-oke:")}


def component(item: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["resources"]["llmd-oke:index:" + item["type"].rpartition(":")[2]]


@pytest.mark.parametrize(("name", "key"), [(name, key) for name in IN_YAML for key in components(name)])
def test_component_arguments_in_the_yaml_examples_are_defined_in_the_package_schema(name: str, key: str):
    item = components(name)[key]
    known, given = component(item), item["properties"]
    assert set(known["requiredInputs"]) <= given.keys() <= known["inputProperties"].keys()
    for argument, value in given.items():
        if isinstance(value, dict):
            inner = SCHEMA["types"][known["inputProperties"][argument]["$ref"].removeprefix("#/types/")]
            assert set(inner.get("required", ())) <= value.keys() <= inner["properties"].keys()


@pytest.mark.parametrize("name", IN_YAML)
def test_the_yaml_examples_read_only_outputs_that_their_components_have(name: str):
    made = components(name)
    text = (EXAMPLES / name / "Pulumi.yaml").read_text()
    read = [(key, output) for key, output in re.findall(r"\$\{(\w+)\.(\w+)\}", text) if key in made]
    assert read
    assert [(key, output) for key, output in read if output not in component(made[key])["properties"]] == []


@pytest.mark.parametrize("name", PYTHON)
def test_examples_in_other_languages_declare_and_export_what_the_python_one_does(name: str):
    program = EXAMPLES / PYTHON[name] / "__main__.py"
    run = partial(runpy.run_path, str(program), run_name="__main__")
    made = declared(run, config=CONFIG, secret_keys=("serving:kubeconfig",), cluster=FirstStack())
    kinds = sorted(kind for item in made.resources if (kind := item.type.removeprefix("llmd-oke:index:")) != item.type)
    if name in IN_YAML:
        declares = [item["type"].rpartition(":")[2] for item in components(name).values()]
        exports = project(name)["outputs"].keys() | OPTIONAL & made.outputs.keys()
    else:
        text = (EXAMPLES / name / "index.ts").read_text()
        declares = re.findall(r"new llmd\.(\w+)\(", text)
        exports = set(re.findall(r"^export const (\w+)", text, re.MULTILINE))
    assert sorted(declares) == kinds
    assert exports == made.outputs.keys()


@pytest.mark.parametrize("file", ["typescript/index.ts", "yaml/Pulumi.yaml"])
def test_second_model_examples_in_other_languages_read_outputs_of_the_first_stack(file: str):
    text = (EXAMPLES / "second-model" / file).read_text()
    read = set(re.findall(r'(?:requireOutput\(|outputs\[)"(\w+)"', text))
    assert read
    assert read <= project("existing-cluster/yaml")["outputs"].keys()


@pytest.mark.parametrize("name", PYTHON)
def test_the_examples_in_other_languages_have_the_stack_file_of_the_one_in_python(name: str):
    own, pythons = (EXAMPLES / folder / "stacks" / "Pulumi.rehearsal.yaml" for folder in (name, PYTHON[name]))
    assert own.read_text() == pythons.read_text()


@pytest.mark.parametrize("name", PYTHON)
def test_examples_in_other_languages_take_the_package_and_versions_of_this_checkout(name: str):
    folder = EXAMPLES / name
    assert (folder / project(name)["packages"]["llmd-oke"]).resolve() == PROJECT / "components"
    lock = (PROJECT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^(pulumi(?:-kubernetes)?)==(\S+)", lock, re.MULTILINE))
    if name in IN_YAML:
        of_providers = [item for item in project(name)["resources"].values() if ":providers:" in item["type"]]
        assert {item["options"]["version"] for item in of_providers} <= {locked["pulumi-kubernetes"]}
    else:
        packages = json.loads((folder / "package.json").read_text())["dependencies"]
        assert (packages["@pulumi/pulumi"], packages["@pulumi/kubernetes"]) == tuple(locked.values())
