"""`llmd-oke explain`: origins of rendered values, and what keys change, by rendering with other values."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from created_cluster import NETWORK
from llmd_base.errors import InvalidStack, KitError
from llmd_oke import planning
from llmd_oke.cli.main import app
from llmd_oke.explain.explanation import FieldExplanation, KeyExplanation, explain_field, explain_key
from llmd_oke.explain.probes import StackProbes, in_cluster, of_cluster, of_unit, whole
from llmd_oke.gitops.rendering import declarations
from llmd_oke.operators import calico
from llmd_oke.planning import Plan
from llmd_oke.program.declare import Declared
from stack_files import created_stack, model, stack, write
from typer.testing import CliRunner

MOST_RENDERINGS = 5
"""The unit, the likely key, and three of the others: of those that go together and of those that don't."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    (folder / "Pulumi.yaml").write_text("name: mine\n")
    write(folder, "small", stack(model("2p-tp1-1d-tp2"), nodes=1))
    write(folder, "created", created_stack(models=[model(copies=2)]))
    return folder


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called once for equal arguments."""
    known: dict[str, Any] = {}

    def call(*args: Any, **options: Any) -> Any:
        key = repr((args, options))
        if key not in known:
            try:
                known[key] = function(*args, **options)
            except InvalidStack as refused:
                known[key] = refused
        if isinstance(known[key], InvalidStack):
            raise known[key]
        return known[key]

    return call


@pytest.fixture(scope="module", autouse=True)
def _each_stack_is_planned_and_rendered_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmd_oke.explain.probes.declarations", once(declarations))
        patch.setattr(planning, "plan_object", once(planning.plan_object))
        yield


def field(project: Path, text: str, stack_name: str = "small") -> FieldExplanation:
    return explain_field(project, stack_name, text)


def origins(found: FieldExplanation) -> list[str]:
    return [probe.key.path for probe in found.origins]


@pytest.mark.parametrize(
    ("text", "keys", "catalogue"),
    [
        ("args[--max-num-seqs]", ["models[0].engine.maxNumSeqs"], "values/vllm/engine-settings.yaml"),
        ("spec.replicas", ["models[0].topology.decode.replicas"], None),
        ("containers[vllm].image", ["release"], "values/releases/llm-d-0.9.0.yaml"),
        ("env[UCX_TLS]", ["rdma"], "values/shapes/BM.GPU.MI300X.8.yaml"),
        ("args[--tensor-parallel-size]", ["models[0].topology.decode.tensorParallelSize"], None),
    ],
)
def test_explaining_a_field_lists_the_stack_keys_and_catalogue_lines_that_set_it(
    project: Path, text: str, keys: list[str], catalogue: str | None
):
    found = field(project, f"Deployment/gpt-oss-120b-decode.{text}")
    assert origins(found) == keys
    assert catalogue is None or catalogue in {line.file for line in found.catalogue}
    assert found.component.startswith("PrefillDecodeUnit gpt-oss-120b")


def test_explaining_a_field_shows_each_catalogue_line_with_its_source_comment(project: Path):
    (line, *_) = field(project, "Deployment/gpt-oss-120b-decode.env[UCX_TLS]").catalogue
    assert line.text.startswith("UCX_TLS: self,sm,rocm,rc # ")


def test_explaining_a_field_of_a_models_second_copy_names_its_stack_file_key(project: Path):
    found = field(project, "Deployment/gpt-oss-120b-1-decode.args[--gpu-memory-utilization]", "created")
    assert origins(found) == ["models[0].engine.gpuMemoryUtilization"]


def test_explain_renders_parts_of_a_stack_to_the_same_objects_as_the_whole_stack(project: Path):
    probes = StackProbes(project, "created")
    unit, serving, cluster, all_ = (
        probes.rendered(view(probes.plan)) for view in (of_unit(0, 1), in_cluster, of_cluster, whole)
    )
    own = {key: unit[key] for key in unit if key[1].startswith("gpt-oss-120b-1-")}
    own |= {key: cluster[key] for key in cluster if key not in serving}
    assert {"Deployment", "Service", "NodePool", "Subnet"} <= {kind for kind, _ in own}
    assert [key for key in own if own[key] != all_[key]] == []


def test_explaining_a_field_that_a_single_key_sets_renders_the_stack_few_times(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    taken: list[Plan] = []
    resources = StackProbes.resources

    def counted(self: StackProbes, plan: Plan, *, rehearsed: bool = False) -> Sequence[Declared]:
        taken.append(plan)
        return resources(self, plan, rehearsed=rehearsed)

    monkeypatch.setattr(StackProbes, "resources", counted)
    found = field(project, "Deployment/gpt-oss-120b-1-decode.args[--max-num-seqs]", "created")
    assert origins(found) == ["models[0].engine.maxNumSeqs"]
    assert len(taken) <= MOST_RENDERINGS


def changed(known: KeyExplanation) -> dict[str, list[str]]:
    return {change.name: [path for path, _, _ in change.fields] for change in known.changes}


def test_explaining_a_key_lists_exactly_the_fields_that_another_value_changes(project: Path):
    known = explain_key(project, "small", "models[0].engine.maxNumSeqs")
    servers = {name: fields for name, fields in changed(known).items() if name.startswith("Deployment/")}
    args = ["spec.template.spec.containers[0].args"]
    assert servers == {f"Deployment/gpt-oss-120b-{role}": args for role in ("decode", "prefill")}
    assert (known.key.value, known.other, known.accepted) == (256, 512, "integer from 1")
    assert known.description.startswith("vLLM's `--max-num-seqs`")


def test_explaining_a_price_shows_the_changed_figures_of_the_plan(project: Path):
    known = explain_key(project, "small", "gpuPools[0].size", [2])
    assert known.figures["$/hour, list prices"] == ("48.00", "96.00")


def test_explaining_a_key_without_effect_on_rendered_objects_says_so(project: Path):
    known = explain_key(project, "small", "models[0].slo.ttftMs", [1000])
    assert not any(name.startswith("Deployment/") for name in changed(known))


def test_oci_resources_can_be_explained_with_the_keys_that_create_them(project: Path):
    found = field(project, "NodePool/mi300x-node-pool.kubernetesVersion", "created")
    assert origins(found) == ["cluster.kubernetesVersion", "gpuPools[0].launch"]


@pytest.mark.nightly
def test_explaining_a_cluster_field_renders_only_the_cluster_with_the_same_result(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    text = "NodePool/mi300x-node-pool.nodeConfigDetails.size"
    of_cluster = field(project, text, "created")
    monkeypatch.setattr("llmd_oke.explain.explanation.of_cluster", whole)
    of_all = field(project, text, "created")
    assert (origins(of_cluster), of_cluster.value) == (origins(of_all), of_all.value)
    assert [item.key for item in of_cluster.untried] == [item.key for item in of_all.untried]


def test_explain_reports_a_value_that_the_pulumi_program_refuses_as_not_tried(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> Any:
        raise KitError("OKE has no such image.")

    monkeypatch.setattr(StackProbes, "rendered", refuse)
    found = field(project, "Deployment/gpt-oss-120b-decode.spec.replicas")
    why = {item.key.path: item.why for item in found.untried}
    assert "OKE has no such image." in why["models[0].topology.decode.replicas"]
    assert not found.origins


def test_explaining_a_key_goes_on_without_calicos_objects_if_its_manifest_is_missing(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    def missing(*_: object) -> Any:
        raise KitError("calico.yaml can't be read.")

    monkeypatch.setattr(calico, "published", missing)
    write(project, "guarded", created_stack(cluster={"network": NETWORK}, networkPolicies={"engine": "calico"}))
    known = explain_key(project, "guarded", "gpuPools[0].size", [3])
    assert known.not_rendered == "Calico's objects: calico.yaml can't be read."
    assert "NodePool/mi300x-node-pool" in {change.name for change in known.changes}


def explained(project: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["explain", *arguments, "--stack", "small", "--project", str(project)])


def test_explain_json_has_the_current_value_of_each_key_and_the_value_tried_instead(project: Path):
    told = json.loads(explained(project, "Deployment/gpt-oss-120b-decode.spec.replicas", "--json").stdout)
    (key,) = told["keys"]
    assert (key["path"], key["value"]) == ("models[0].topology.decode.replicas", 1)
    assert key["tried"] != 1


def test_the_text_output_of_explain_shows_each_key_with_its_value_and_the_component(project: Path):
    words = " ".join(explained(project, "Deployment/gpt-oss-120b-decode.spec.replicas").stdout.split())
    assert "models[0].topology.decode.replicas = 1" in words
    assert "written by PrefillDecodeUnit gpt-oss-120b" in words


@pytest.mark.parametrize(
    "arguments",
    [
        ("Deployment/nothing",),
        ("models[0].nothing",),
        ("models[7].copies",),
        ("namespace", "--to", "{"),
        ("namespace", "--to", "No Name"),
        ("Deployment/gpt-oss-120b-decode", "--to", "1"),
    ],
)
def test_explain_exits_with_1_for_unknown_fields_or_keys_and_invalid_values(project: Path, arguments: tuple[str, ...]):
    result = explained(project, *arguments)
    assert result.exit_code == 1
    assert type(result.exception).__name__ in {"KitError", "InvalidStack"}
