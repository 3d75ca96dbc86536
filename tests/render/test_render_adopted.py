"""Stack files of adopted clusters: what they say, and that nothing of the cluster is declared."""

import json
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.cli.main import app
from llmd_oke.config import CONFIG_KEY
from llmd_oke.program import program
from llmd_oke.program.declare import declared
from llmd_oke.values import read_yaml
from terraform_states_for_tests import (
    CLUSTER,
    CLUSTER_ID,
    POOL,
    RDMA,
    ROUTE,
    guide_deployment,
    objects,
    state,
)
from typer.testing import CliRunner


def adopted(folder: Path, *words: str, status: int = 0, **files: Any) -> str:
    """Adopt a cluster in a new project; return what was shown."""
    (folder / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: python\n")
    for name, document in {"state": state(), **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    ended = CliRunner().invoke(
        app, ["adopt", str(folder / "state.json"), "--stack", "prod", "--project", str(folder), *words]
    )
    assert ended.exit_code == status, (ended.output, ended.exception)
    return ended.output if not status else str(getattr(ended.exception, "message", ended.exception))


def stack_of(folder: Path) -> dict[str, Any]:
    return read_yaml(folder / "stacks" / "Pulumi.prod.yaml")["config"][CONFIG_KEY]


def test_adopting_an_oci_hpc_oke_cluster_takes_its_settings_from_terraforms_state(tmp_path: Path):
    shown = adopted(tmp_path, "--topology", "8p-tp1-4d-tp2")
    stack = stack_of(tmp_path)
    assert stack["cluster"] == {
        "mode": "existing",
        "identifier": CLUSTER_ID,
        "virtualFunctions": "oci-hpc-oke",
        "controlPlaneCidrs": ["10.140.0.0/29"],
    }
    assert stack["gpuPools"] == [{"name": "oke-rdma", "shape": "BM.GPU.MI300X.8", "size": 2}]
    assert "stays Terraform's: cluster oke-gpu-quickstart-abcdef" in shown
    assert "oke-system (3 x VM.Standard.E5.Flex)" in shown


def test_a_stack_on_an_adopted_cluster_declares_nothing_of_oci(tmp_path: Path):
    adopted(tmp_path, "--topology", "8p-tp1-4d-tp2")
    settings = {CONFIG_KEY: json.dumps(stack_of(tmp_path)), "llmd-oke:rehearsed": "true"}
    types = {resource.type for resource in declared(program, config=settings).resources}
    assert any(name.startswith("kubernetes:") for name in types)
    assert [name for name in types if name.startswith(("oci:", "pulumi:providers:oci"))] == []


def test_adopting_a_cluster_without_virtual_functions_disables_rdma(tmp_path: Path):
    adopted(tmp_path, "--topology", "4p-tp1-2d-tp2", state=state([CLUSTER, RDMA]))
    stack = stack_of(tmp_path)
    assert stack["rdma"] == "none"
    assert stack["cluster"] == {"mode": "existing", "identifier": CLUSTER_ID}


def test_adopt_lists_the_steps_that_replace_a_llm_d_guide_deployment(tmp_path: Path):
    there = objects(guide_deployment("prefill", 4, 1), guide_deployment("decode", 1, 4), POOL, ROUTE)
    shown = adopted(tmp_path, "--objects", str(tmp_path / "objects.json"), objects=there)
    stack = stack_of(tmp_path)
    assert stack["namespace"] == "llmd-oke"
    assert (stack["models"][0]["model"], stack["models"][0]["topology"]) == ("gpt-oss-120b", "4p-tp1-1d-tp4")
    assert "1. llmd-oke up --stack prod   # beside llm-d/pd-disaggregation-rocm-vllm-prefill" in shown
    assert "2. llm-d/pd-disaggregation: a route of the stack at the same Gateway takes over, in two updates" in shown
    assert "3. kubectl delete deployment pd-disaggregation-rocm-vllm-prefill" in shown


def test_adopt_reports_an_outage_if_old_and_new_deployment_do_not_fit_together(tmp_path: Path):
    there = objects(guide_deployment("prefill", 8, 1), guide_deployment("decode", 1, 8))
    shown = adopted(tmp_path, "--objects", str(tmp_path / "objects.json"), objects=there)
    assert "1. 16 GPUs are needed and 0 are free" in shown


@pytest.mark.parametrize(
    ("files", "words", "cause"),
    [
        ({"state": {"version": 4}}, (), "is no state of Terraform"),
        ({"objects": {"kind": "Pod"}}, ("--objects", "objects.json"), "is no list of Kubernetes objects"),
        ({"objects": objects(POOL)}, ("--objects", "objects.json"), "has no Deployment with amd.com/gpu"),
        (
            {"objects": objects(guide_deployment("decode", 1, 4))},
            ("--objects", "objects.json"),
            "not one Deployment of prefill and one of decode",
        ),
    ],
)
def test_adopt_refuses_invalid_input_files_and_writes_nothing(
    tmp_path: Path, files: dict[str, Any], words: tuple[str, ...], cause: str
):
    given = [str(tmp_path / word) if word.endswith(".json") else word for word in words]
    assert cause in adopted(tmp_path, *given, status=1, **files)
    assert not (tmp_path / "stacks").exists()
