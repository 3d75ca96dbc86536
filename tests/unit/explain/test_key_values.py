"""Values of a stack's keys with their origins, as `config show` tells them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_oke import config, planning
from llmd_oke.cli.main import app
from llmd_oke.config.yaml_files import text_of
from llmd_oke.explain.key_values import KeyValue, effective_values, written_values
from llmd_oke.explain.keys import StackFile
from stack_files import PROJECT, model, stack
from typer.testing import CliRunner


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    own = {"base": "shared.yaml", "models": {"gpt-oss-120b": {"copies": 1}}}
    (tmp_path / "stacks" / "Pulumi.mine.yaml").write_text(text_of({"config": {"llmd-oke:stack": own}}))
    (tmp_path / "stacks" / "shared.yaml").write_text(text_of(stack()))
    return tmp_path


def shown(project: Path, *options: str) -> dict[str, Any]:
    asked = ["config", "show", "--stack", "mine", "--project", str(project), "--json", *options]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0, told.output
    return {item.pop("path"): item for item in json.loads(told.stdout)["values"]}


def test_config_show_gives_file_and_line_of_each_value(project: Path):
    values = shown(project)
    assert values["models[0].copies"] == {
        "value": 1,
        "origin": "stack file",
        "source": "stacks/Pulumi.mine.yaml",
        "line": 6,
    }
    assert values["gpuPools[0].size"] == {"value": 9, "origin": "base", "source": "stacks/shared.yaml", "line": 7}
    assert {item["origin"] for item in values.values()} == {"stack file", "base"}


def test_config_show_gives_defaults_of_omitted_keys_on_request(project: Path):
    values = shown(project, "--effective")
    assert shown(project).items() <= values.items()
    left_out = {path: (item["value"], item["origin"], item["source"]) for path, item in values.items()}
    assert left_out["namespace"] == ("llm-d", "default", "")
    assert left_out["models[0].engine.blockSize"] == (128, "release", "values/releases/llm-d-0.9.0.yaml")
    assert left_out["models[0].engine.maxModelLen"] == (131072, "catalogue", "values/models/gpt-oss-120b.yaml")
    assert left_out["models[0].name"] == ("gpt-oss-120b", "key", "models[0].model")


def test_config_show_prints_the_line_of_each_value(project: Path):
    told = CliRunner().invoke(app, ["config", "show", "--stack", "mine", "--project", str(project)])
    lines = [line.split() for line in told.stdout.splitlines()]
    assert ["models[0].copies", "1", "line", "6"] in lines
    assert ["gpuPools[0].size", "9", "stacks/shared.yaml:7"] in lines


def test_the_merged_stack_file_that_config_show_prints_gives_the_same_plan(project: Path):
    told = CliRunner().invoke(app, ["config", "show", "--stack", "mine", "--project", str(project), "--yaml"])
    assert planning.plan(config.parse(yaml.safe_load(told.stdout))) == planning.plan_stack_file(project, "mine")


@pytest.mark.parametrize("name", ["reference", "existing", "guide", "small"])
def test_writing_defaults_of_omitted_keys_into_a_stack_file_changes_no_servers(name: str):
    left_out = {item.path: item.value for item in effective_values(PROJECT, name) if _is_left_out(item)}
    written = planning.plan_object(StackFile(PROJECT, name).with_values(left_out))
    assert _deployed(written) == _deployed(planning.plan_stack_file(PROJECT, name))


def _is_left_out(item: KeyValue) -> bool:
    """Tell whether a value is not of the file, and may be: a stack without a cache may name no revisions."""
    return item.origin not in {"stack file", "base"} and not item.path.startswith(("override.", "storage.prewarm"))


def _deployed(plan: planning.Plan) -> list[Any]:
    models = [(model.units, model.profile, model.router_replicas, model.kv_events) for model in plan.models]
    return [models, plan.pools, plan.gpu_stack, plan.release, plan.created]


def test_config_show_gives_the_values_of_a_stack_that_cannot_be_deployed(project: Path):
    (project / "stacks" / "shared.yaml").write_text(text_of(stack(model(), nodes=1)))
    assert {item.origin for item in written_values(project, "mine")} == {"stack file", "base"}
