"""`llmd-oke pipeline`: names of stack files only, and the Markdown that a reviewer reads."""

import re
from pathlib import Path

import pytest
import yaml
from llmd_base.errors import KitError
from llmd_oke.catalogue.operations import pipeline_identities
from llmd_oke.cli.main import app
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.previews import Preview, parse
from llmd_oke.pipelines.comment import headline, preview_markdown
from llmd_oke.pipelines.preview_report import preview_report
from previews_for_tests import PLAN, document, recorded, replaced_pool, step
from stack_files import PROJECT, existing_pool, model, plan
from typer.testing import CliRunner

GOLDEN = PROJECT / "tests" / "render" / "golden"


COMMANDS = [[name] for name in ("deploy", "drift", "limit", "preview", "promote")]
COMMANDS += [[name, "--rehearse"] for name in ("deploy", "drift", "preview", "promote")]
WRONG = ("org/llmd-oke/reference", "org/reference", "../reference", "reference ", "", "Reference")


@pytest.mark.parametrize(
    ("command", "stack"),
    [*((command, "../reference") for command in COMMANDS), *((COMMANDS[0], stack) for stack in WRONG)],
)
def test_pipeline_commands_refuse_a_name_that_is_no_stack_file_of_the_project(command: list[str], stack: str):
    ended = CliRunner().invoke(app, ["pipeline", *command, "--stack", stack, "--project", str(PROJECT)])
    assert isinstance(ended.exception, KitError)
    assert "is no name of a stack file" in ended.exception.message
    assert "reference" in str(ended.exception.remedy)


def rights(identity: str, *more: str) -> str:
    argv = ["pipeline", "rights", identity, "--stack", "reference", "--project", str(PROJECT), "--group", "ci", *more]
    ended = CliRunner().invoke(app, argv)
    if ended.exception:
        raise ended.exception
    return ended.output


GROUP = ("--group-id", "ocid1.group.oc1..aaaa")


@pytest.mark.parametrize("identity", pipeline_identities())
def test_pipeline_rights_prints_iam_statements_and_cluster_roles_of_an_identity(identity: str):
    text = rights(identity, *GROUP)
    statements = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# Allow")]
    assert statements
    assert "$" not in text
    if identity != "deploy":
        role, binding = yaml.safe_load_all(text)
        assert (role["kind"], binding["kind"]) == ("ClusterRole", "ClusterRoleBinding")
        assert role["metadata"]["name"] == binding["metadata"]["name"] == f"llmd-oke-{identity}"
        group = {"kind": "Group", "name": "ocid1.group.oc1..aaaa", "apiGroup": "rbac.authorization.k8s.io"}
        assert binding["subjects"][0] == group


@pytest.mark.parametrize("identity", ["drift", "preview"])
def test_read_only_pipeline_identities_may_only_read_and_get_a_kubeconfig(identity: str):
    text = rights(identity, *GROUP)
    statements = [line for line in text.splitlines() if line.startswith("# Allow")]
    assert any("{CLUSTER_USE}" in line for line in statements)
    assert not [line for line in statements if " manage " in line or " use " in line]
    (role, _) = yaml.safe_load_all(text)
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    # `get` of pods/exec, nodes/proxy and services/proxy runs commands in pods and calls kubelets; "*" has them
    for rule in role["rules"]:
        assert not [name for name in rule["resources"] if "/" in name]
        assert "*" not in rule["apiGroups"]
        assert "" not in rule["apiGroups"] or "*" not in rule["resources"]


def test_the_preview_identity_may_read_every_declared_kind_except_secrets():
    (role, _) = yaml.safe_load_all(rights("preview", *GROUP))
    by_group = {group: rule["resources"] for rule in role["rules"] for group in rule["apiGroups"]}
    assert "secrets" not in by_group[""]
    assert "*" not in by_group.keys() | set(by_group[""])
    versions = re.findall(
        r'^ *"?apiVersion"?: "?([a-z0-9./-]+)', "\n".join(map(Path.read_text, GOLDEN.rglob("*.*"))), re.MULTILINE
    )
    declared = {version.rpartition("/")[0] for version in versions}
    assert len(declared) > 5
    assert declared <= by_group.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [(("drifter", *GROUP), "There is no identity drifter"), (("drift", "--group-id", "ci"), "is no OCID of a group")],
)
def test_an_unknown_pipeline_identity_or_invalid_group_ocid_is_refused(words: tuple[str, ...], message: str):
    with pytest.raises(KitError, match=message):
        rights(*words)


def judged(preview: Preview, *, allow_replace: bool = False) -> str:
    return preview_markdown(preview_report("prod", PLAN, preview, allow_replace=allow_replace))


def test_a_preview_shows_initial_gpu_nodes_and_the_autoscalers_limits():
    pool = existing_pool(size=3)
    scaled = existing_pool(size=3, scaling={"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 9})
    for one, text in ((pool, "3 GPU nodes, 16 of 24 GPUs"), (scaled, "3 GPU nodes (2 to 9), 16 of 24 GPUs")):
        new_plan = plan(model("8p-tp1-2d-tp4"), gpuPools=[one])
        assert preview_report("prod", new_plan, parse(document())).size.startswith(text)


def test_a_preview_report_lists_changes_and_emphasizes_causes_of_replacements():
    said = judged(recorded("switch"))
    assert "| delete | Deployment m-aggregated |" in said
    assert "| create | Deployment m-prefill |" in said
    assert "AggregatedUnit" not in said
    assert said.index("| delete |") < said.index("| create |")
    assert "m-aggregated must go before they come" in said
    assert r'**metadata.labels\["llmd-oke/tensor-parallel-size"\]**' in judged(recorded("replace"))


def test_the_report_of_a_refused_preview_names_the_property_or_error_that_causes_it():
    preview = parse(document(replaced_pool()))
    said = judged(preview)
    assert "**The update is refused**" in said
    assert "nodeConfigDetails.computeClusterId changes from 'ocid1.old' to 'ocid1.new'" in said
    assert len(preview_report("prod", PLAN, preview).refusals) == 1
    assert preview_report("prod", PLAN, preview, allow_replace=True).refusals == ()
    assert preview_report("prod", PLAN, parse(document(errors=("no such shape",)))).refusals == ("no such shape",)


def test_a_preview_report_has_costs_and_manual_changes_even_without_other_changes():
    said = judged(parse(document(step("same", "a:b:C", "d"))))
    assert said.startswith("### `prod`: no changes\n")
    assert "96.00 $/hour" in said
    assert "refused" not in said
    by_hand = [Drift("u", "", "ConfigMap c is gone; the update makes it anew")]
    said = preview_markdown(preview_report("prod", PLAN, parse(document()), by_hand=by_hand))
    assert "**Changed by hand**\n\n- ConfigMap c is gone; the update makes it anew" in said


def test_a_preview_report_shortens_many_changes_and_counts_a_replacement_once():
    said = judged(parse(document(*(step("create", "a:b:C", f"n{i}") for i in range(200)))))
    assert "and 140 more" in said
    steps = {"replace": 1, "delete-replaced": 1, "create-replacement": 1, "same": 3}
    assert headline(steps) == "1 to replace, 3 unchanged"
