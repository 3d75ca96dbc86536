"""Planted secrets are in none of the engine's texts: state, preview, diff and the log
that it writes by itself. With `--verbose 9` it logs every message of its protocol, secrets too."""

import json
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pulumi_oci as oci
import pytest
from llmd_oke.cluster.node_image import NodeImage
from llmd_oke.serving.model_cache import source_secret
from llmd_oke.serving.namespace import token_secret
from pulumi import automation
from test_engine_updates import RecordingPlugin, engine_options, serving

pytestmark = pytest.mark.engine

PLANTED = ("planted-image-link", "planted-kubeconfig", "planted-source", "hf_planted_token")


def program(links: dict[str, str]) -> None:
    region = oci.Provider("oci", region="us-ashburn-1")
    image: Any = {"compartment_id": "c", "display_name": "ubuntu", "uri": links["uri"], "checksum": "md5:" + "a" * 32}
    NodeImage("gpu", image, pulumi.ResourceOptions(providers=[region]))
    kubeconfig = pulumi.Output.secret(json.dumps({"users": [{"user": {"token": "planted-kubeconfig"}}]}))
    cluster = pulumi.ResourceOptions(provider=k8s.Provider("c", cluster_identifier="test", kubeconfig=kubeconfig))
    for name, manifest in (
        ("source", source_secret("n", "https://o/p/planted-source/")),
        ("token", token_secret("n", "hf_planted_token")),
    ):
        k8s.core.v1.Secret(name, metadata=manifest["metadata"], string_data=manifest["stringData"], opts=cluster)
    pulumi.export("kubeconfig", kubeconfig)


def test_state_preview_and_log_show_no_planted_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    links = {"uri": "https://objectstorage/p/planted-image-link/n/ns/b/images/o/image.oci"}
    told: list[str] = []
    with serving(RecordingPlugin()) as address:
        port = address.rpartition(":")[2]
        options = engine_options(f"{address},oci:{port}", tmp_path, monkeypatch)
        stack = automation.create_stack("test", "llmd-oke", lambda: program(links), opts=options)
        told += [stack.preview(diff=True, on_output=told.append).stdout]
        told += [stack.up(diff=True, on_output=told.append, on_error=told.append).stdout]
        links["uri"] = links["uri"].replace("image.oci", "other.oci")
        told += [stack.preview(diff=True, on_output=told.append).stdout]
    state = list((tmp_path / ".pulumi/stacks").rglob("test.json"))
    assert len(state) == 1
    told += [file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    shown = "\n".join(told)
    assert "imageSourceDetails" in shown
    assert "[secret]" in shown
    for text in PLANTED:
        where = shown.find(text)
        assert where < 0, shown[max(0, where - 300) : where + 100]
