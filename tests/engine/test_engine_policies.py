"""The policy pack at the real engine: the CLI starts it as a program that speaks pulumi-policy.

Pulumi's plug-in for Python (`pulumi-language-python`) starts packs. Where it is missing, the engine asks for
`pulumi-analyzer-policy-python`, which Pulumi distributed before 3.221 and which is a script of two lines here.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pulumi
import pulumi_kubernetes as k8s
import pytest
from engine_servers import RecordingPlugin, language_server
from llmd_base.errors import KitError
from llmd_oke.operations import pulumi_cli
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli, run
from llmd_rehearsal.inventory import LANGUAGES
from llmd_rehearsal.program_definitions import program_definition
from llmd_rehearsal.programs import locate, why_unavailable
from pulumi_engine import KeptStack
from stack_files import PROJECT, model, stack, write

pytestmark = pytest.mark.engine

PINNED, TAGGED = f"docker.io/a/b:1@sha256:{'0' * 64}", "docker.io/a/b:1"
TOKEN = "hf_" + "a1B2" * 10
ANALYZER = '#!/bin/sh\nexec "{python}" -u -m pulumi.policy "$1" "$2"\n'


class GuardedStack:
    """A stack of one Pod whose project has the policy pack of the examples."""

    def __init__(self, project: Path, plugin: RecordingPlugin) -> None:
        self.image = PINNED
        self.hides_token = True
        self.plugin, self.project = plugin, project
        shutil.copytree(PROJECT / "examples" / "policies", project / "policies")
        self.cli = PulumiCli(project, "test", "pulumi", self._run)

    def choose(self, policies: str) -> None:
        (self.project / "policies" / "policies.yaml").write_text(policies)

    def program(self) -> None:
        opts = pulumi.ResourceOptions(provider=k8s.Provider("cluster", cluster_identifier="test"))
        token = pulumi.Output.secret(TOKEN) if self.hides_token else TOKEN
        spec = {"containers": [{"name": "server", "image": self.image, "env": [{"name": "HF_TOKEN", "value": token}]}]}
        k8s.core.v1.Pod("server", metadata={"name": "server", "namespace": "llm-d"}, spec=spec, opts=opts)

    def up(self) -> int:
        self.plugin.calls.clear()
        return self.cli.up(yes=True, skip_preview=True)

    def _run(self, argv: Sequence[str], capture: bool) -> CommandResult:
        if not {"up", "preview"} & {*argv[:4]}:
            return run(argv, True)
        with language_server(self.program) as address:
            ended = run([*argv, "--client", address, "--exec-kind", "auto.inline"], True)
        self.said = ended.output + ended.errors
        return ended


def install_host(kind: str, programs: Path, project: Path) -> None:
    """Put what starts the pack into the folder `programs`: Pulumi's plug-in for Python, or the script."""
    if kind == "script":
        script = programs / "pulumi-analyzer-policy-python"
        script.write_text(ANALYZER.format(python=sys.executable))
        script.chmod(0o755)
        return
    name = LANGUAGES["python"]
    host = locate(name)
    if host is None or not host.path.with_name(f"{name}-exec").exists():
        reason = why_unavailable(name, program_definition(name).version)
        pytest.skip(f"no {name}: {reason or 'llmd-oke rehearse programs --languages fetches it'}")
    (programs / name).symlink_to(host.path)
    (project / ".venv").symlink_to(sys.prefix)


@pytest.fixture(params=["script", pytest.param("plug-in", marks=pytest.mark.nightly)])
def guarded(
    request: pytest.FixtureRequest,
    stack_with: Callable[..., KeptStack],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> GuardedStack:
    pytest.importorskip("pulumi_policy", reason="pulumi-policy is not installed: scripts/setup dev")
    made = GuardedStack(tmp_path / "work", RecordingPlugin())
    made.plugin.remembered = "kubernetes:core/v1:Pod"
    stack_with(made.plugin, made.program)
    programs = tmp_path / "programs"
    programs.mkdir()
    install_host(request.param, programs, tmp_path / "work")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return made


def test_the_pulumi_engine_refuses_a_resource_that_violates_mandatory_policies(guarded: GuardedStack):
    guarded.choose("levels: {image-digests: mandatory, plain-secrets: mandatory}")
    guarded.image, guarded.hides_token = TAGGED, False
    assert guarded.up()
    assert not guarded.plugin.calls
    assert f"the image {TAGGED} can become another one" in guarded.said
    assert "spec.containers[0].env[0].value has a token of Hugging Face in plain text" in guarded.said


def test_the_pulumi_engine_reports_an_advisory_policy_violation_and_goes_on(guarded: GuardedStack):
    guarded.choose("levels: {image-digests: advisory, plain-secrets: mandatory}")
    guarded.image = TAGGED
    assert guarded.up() == 0, guarded.said
    assert guarded.plugin.calls == [("create", "server")]
    assert f"the image {TAGGED} can become another one" in guarded.said


def test_a_policy_refuses_a_stack_whose_monthly_price_exceeds_its_limit(guarded: GuardedStack):
    guarded.choose("levels: {monthly-cost: mandatory}\nmonthlyUsd: 1000\n")
    write(guarded.project, "test", stack(model("1p-tp1-1d-tp1")))
    assert any("US dollars a month at list price" in text for text in guarded.cli.preview().errors), guarded.said


def test_a_policy_pack_without_its_package_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copytree(PROJECT / "examples" / "policies", tmp_path / "policies")
    monkeypatch.setattr(pulumi_cli, "find_spec", lambda _: None)
    cli = PulumiCli(tmp_path, "test", "pulumi", lambda *_: CommandResult(0, "{}"))
    with pytest.raises(KitError, match=r"llmd-oke\[policies\]"):
        cli.preview()
