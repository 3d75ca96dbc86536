"""Keys of a stack file: where they stand, and which other values are tried."""

from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.config.yaml_files import value_at
from llmd_oke.explain.keys import StackFile, other_values, schema_nodes
from stack_files import model, stack, write


@pytest.fixture
def file(tmp_path: Path) -> StackFile:
    (tmp_path / "Pulumi.yaml").write_text("name: mine\n")
    write(tmp_path, "s", stack(model(engine={"maxNumSeqs": 64})))
    return StackFile(tmp_path, "s")


def test_each_known_key_has_a_value_and_the_line_that_sets_it_unless_it_is_default(file: StackFile):
    keys = {key.path: key for key in file.known_keys()}
    assert keys["models[0].engine.maxNumSeqs"].line is not None
    assert keys["models[0].engine.gpuMemoryUtilization"].line is None
    assert keys["namespace"].value == "llm-d"


def test_explain_knows_the_replicas_in_a_short_topology_as_keys_of_its_line(file: StackFile):
    keys = {key.path: key for key in file.known_keys()}
    prefill, decode = (keys[f"models[0].topology.{role}.replicas"] for role in ("prefill", "decode"))
    assert (prefill.value, decode.value) == (8, 4)
    assert prefill.line == decode.line is not None


def test_explain_tries_other_values_of_keys_in_a_copy_of_the_stack_file(file: StackFile):
    path = "models[0].engine.kvCache.hostMemoryGib"
    assert value_at(file.with_values({path: 8, "namespace": "other"}), path) == 8
    assert value_at(file.object, path) is None


def test_explain_refuses_a_key_path_into_a_missing_list_item(file: StackFile):
    with pytest.raises(KitError, match="no place for models"):
        file.with_values({"models[3].engine.maxNumSeqs": 1})


@pytest.mark.parametrize(
    ("path", "value", "other"),
    [
        ("rdma", "sriov-vf", "none"),
        ("models[0].engine.maxNumSeqs", 256, 512),
        ("cluster.protect", True, False),
        ("release", "llm-d-0.9.0", "llm-d-0.10.0"),
        ("cluster.kubernetesVersion", "v1.34.2", "v1.34.3"),
        ("models[0].engine.blockSize", None, 16),
        ("models[0].topology", {"aggregated": {"replicas": 2}}, {"aggregated": {"replicas": 1}}),
    ],
)
def test_other_values_that_explain_tries_for_a_key_have_the_keys_type(path: str, value: Any, other: Any):
    assert other in list(other_values(path, value))


def test_explain_answers_an_unknown_key_with_existing_keys():
    with pytest.raises(KitError, match=r"no models\[0\]\.nonsense") as refused:
        schema_nodes("models[0].nonsense")
    assert "topology" in (refused.value.remedy or "")
