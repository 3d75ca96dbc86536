"""Planted secrets are in none of the engine's texts: state, preview, diff, events as JSON, the log that it writes by
itself, what the kit reads from the CLI, and how it calls it. With `--verbose 9` it logs every message of its protocol,
secrets too."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import pulumi_oci as oci
import pytest
from engine_servers import RecordingPlugin
from llmd_base.errors import KitError
from llmd_oke.cluster.pools import NodeImage
from llmd_oke.operations import updates
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli, run
from llmd_oke.serving.model_cache import source_secret
from llmd_oke.serving.namespace import token_secret
from pulumi import automation
from pulumi_engine import KeptStack

pytestmark = pytest.mark.engine

PLANTED = ("planted-image-link", "planted-config", "planted-kubeconfig", "planted-source", "hf_planted_token")


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


def is_debugging(event: automation.EngineEvent) -> bool:
    """Pulumi's SDK tells all outputs in such messages; the kit shows and keeps none of them."""
    return event.diagnostic_event is not None and event.diagnostic_event.severity == "debug"


def by_the_kit(project: Path) -> list[str]:
    """Return what the kit reads of the stack with the CLI, the words that it calls it with, and its errors."""
    calls: list[str] = []

    def recorded(argv: Sequence[str], capture: bool) -> CommandResult:
        ended = run(argv, True)
        calls.extend([*argv, ended.errors])
        return ended

    program = shutil.which("pulumi")
    assert program
    subprocess.run(
        [program, "config", "set", "--secret", "token", "--stack", "test"],
        cwd=project,
        input="planted-config",
        text=True,
        check=True,
    )
    cli = PulumiCli(project, "test", program, recorded)
    read = [json.dumps(each) for each in (cli.outputs(), cli.resources(), cli.export())]
    assert "planted-kubeconfig" in cli.output("kubeconfig")
    assert cli.secret("llmd-oke:token") == "planted-config"
    with pytest.raises(KitError) as caught:
        cli.output("none")
    return [*read, *calls, str(caught.value), repr(updates.protected_urns(cli))]


def test_pulumis_state_preview_and_log_contain_no_planted_secret(stack_with: Callable[..., KeptStack], tmp_path: Path):
    links = {"uri": "https://objectstorage/p/planted-image-link/n/ns/b/images/o/image.oci"}
    told: list[str] = []
    events: list[automation.EngineEvent] = []
    stack = stack_with(RecordingPlugin(), lambda: program(links), packages=("kubernetes", "oci"), logs=True)
    told += [stack.preview(diff=True, on_output=told.append).stdout]
    told += [stack.up(diff=True, on_output=told.append, on_error=told.append, on_event=events.append).stdout]
    links["uri"] = links["uri"].replace("image.oci", "other.oci")
    told += [stack.preview(diff=True, on_output=told.append, on_event=events.append).stdout]
    told += by_the_kit(tmp_path / "work")
    told += [repr(vars(event)) for event in events if not is_debugging(event)]
    assert stack.checkpoint.is_file()
    told += [file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    shown = "\n".join(told)
    assert "imageSourceDetails" in shown
    assert "[secret]" in shown
    for text in PLANTED:
        where = shown.find(text)
        assert where < 0, shown[max(0, where - 300) : where + 100]
