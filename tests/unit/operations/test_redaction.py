import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llmd_base.errors import KitError
from llmd_oke.config import read
from llmd_oke.operations import redaction
from llmd_oke.operations.previews import Preview, ResourceChange
from llmd_oke.operations.redaction import PLACEHOLDER, compared, preview_project, without_secrets
from llmd_oke.values import read_yaml
from stack_files import stack, write

PLANTED = "planted-secret"
MARK = {redaction.SIGNATURE: redaction.IS_SECRET}
KUBECONFIG = """
clusters: [{name: c, cluster: {server: "https://10.0.0.6:6443", certificate-authority-data: QQ==}}]
users: [{name: u, user: {%s}}]
"""


def secret(value: object, **more: str) -> dict[str, Any]:
    return {**MARK, "plaintext": json.dumps(value), **more}


def state(*secrets: object) -> dict[str, Any]:
    resources = [{"urn": f"u::{index}", "inputs": {"a": [item]}} for index, item in enumerate(secrets)]
    provider = {"type": "passphrase", "state": {"salt": PLANTED}}
    return {"version": 3, "deployment": {"resources": resources, "secrets_providers": provider}}


SHAPES = st.recursive(
    st.just(PLANTED) | st.just(f"x{PLANTED}y") | st.just(f"clusters: {PLANTED}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)


@given(SHAPES)
def test_secrets_of_every_kind_are_removed_from_a_state(value: Any):
    shown, sealed = secret(value), {**MARK, "ciphertext": PLANTED}
    public = without_secrets(state(shown, sealed, secret({"inner": shown, "more": sealed})))
    assert PLANTED not in json.dumps(public)
    assert [item["urn"] for item in public["deployment"]["resources"]] == ["u::0", "u::1", "u::2"]
    assert "secrets_providers" not in public["deployment"]


def test_redaction_keeps_plain_values_and_the_types_of_secret_values():
    public = without_secrets(state("plain", secret({"name": PLANTED, "count": 3, "on": True, "none": None})))
    plain, kept = (item["inputs"]["a"][0] for item in public["deployment"]["resources"])
    assert plain == "plain"
    expected = {"name": PLACEHOLDER, "count": 0, "on": True, "none": None}
    assert (kept[redaction.SIGNATURE], json.loads(kept["plaintext"])) == (redaction.IS_SECRET, expected)


@pytest.mark.parametrize(
    ("user", "stays"),
    [("exec: {command: llmd-oke}", True), (f"token: {PLANTED}", False), (f"client-key-data: {PLANTED}", False)],
)
def test_a_kubeconfig_is_kept_only_if_it_contains_no_credentials(user: str, stays: bool):
    text = KUBECONFIG % user
    (kept,) = (item["inputs"]["a"][0] for item in without_secrets(state(secret(text)))["deployment"]["resources"])
    assert json.loads(kept["plaintext"]) == (text if stays else PLACEHOLDER)


def test_a_preview_without_secrets_ignores_only_differences_from_placeholders():
    old = {"data": "[secret]", "labels": {"a": "b"}}
    hidden = ResourceChange("update", "a::b::c::d", old=old, changed=("data.token",))
    both = ResourceChange("update", "a::b::c::e", old=old, changed=("data", "labels.a"))
    preview, count = compared(Preview((hidden, both, ResourceChange("create", "a::b::c::f"))))
    assert [(change.operation, change.changed) for change in preview.changes] == [
        ("same", ()),
        ("update", ("labels.a",)),
        ("create", ()),
    ]
    assert count == 2


def test_the_project_copy_for_previews_has_base_files_and_placeholders_for_secrets(tmp_path: Path):
    project, copy = tmp_path / "project", tmp_path / "copy"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: llmd-oke\n")
    file = write(project, "prod", {"base": "shared.yaml"}, {"llmd-oke:huggingFaceToken": {"secure": PLANTED}})
    (project / "stacks" / "shared.yaml").write_text(yaml.safe_dump(stack()))
    sealed = read_yaml(file) | {"encryptionsalt": PLANTED}
    sealed["config"]["llmd-oke:imageLinks"] = {"mi300x": {"secure": PLANTED}}
    file.write_text(yaml.safe_dump(sealed))
    redaction._copy(project, copy)
    text = (copy / "stacks" / "Pulumi.prod.yaml").read_text()
    assert PLANTED not in text
    config = yaml.safe_load(text)["config"]
    assert config["llmd-oke:huggingFaceToken"] == config["llmd-oke:imageLinks"]["mi300x"] == PLACEHOLDER
    assert read(copy, "prod") == read(project, "prod") == stack()
    assert (copy / "Pulumi.yaml").read_text() == "name: llmd-oke\n"


def test_a_folder_without_the_stacks_state_is_refused_with_the_command_to_write_it(tmp_path: Path):
    with pytest.raises(KitError, match=r"has no prod\.json") as refused, preview_project(tmp_path, "prod", tmp_path):
        pytest.fail("previewed")
    assert refused.value.remedy == "llmd-oke pipeline state --stack prod --output FILE"
