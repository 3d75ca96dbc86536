"""The workflows' own steps with the real Pulumi CLI: sign-in, backend and passphrase, a stack's state, its previews.

GitHub's issuer, the identity domain, Pulumi Cloud and OCI are servers on this machine. `gh` and `pulumi` are scripts:
the first gives the artifacts of earlier jobs, the second the program of the stack, as the automation API does.
"""

import base64
import json
import os
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pulumi
import pytest
import yaml
from engine_servers import language_server
from http_for_tests import served
from job_tokens_for_tests import CLIENT, Issuers
from llmd_base.errors import KitError
from llmd_oke import catalogue
from llmd_oke.catalogue.releases import module_folder
from llmd_oke.operations.job_sign_in import ORGANIZATION, job_signed_in
from llmd_oke.values import read_yaml
from llmd_rehearsal.oci_plugin.server import PluginOptions, start
from llmd_rehearsal.programs import locate
from pulumi_engine import home_without_logs, state_file
from stack_files import document, stack
from workflows_for_tests import GH, Runner, checkout_of, has_programs

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not has_programs(), reason="no bash, jq, bwrap, ip or unshare")]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "name: llmd-oke\nruntime: {name: python}\nstackConfigDir: stacks\n"
SECRET, PASSPHRASE = "hf_the-planted-secret", "the planted passphrase"
COMPARTMENT = "ocid1.compartment.oc1..aaaa"
PULUMI = """#!/bin/sh
# The real CLI, whose program is in another process; what a job's environment lets it sign in with is written down.
echo "$1 $OCI_AUTH $OCI_CONFIG_FILE_PROFILE $PULUMI_BACKEND_URL" >> "{evidence}/asked"
case "$1" in
  up|preview)
    [ -z "$OCI_AUTH" ] || llmd-oke token --cluster-id ocid1.cluster.1 --region us-ashburn-1 >> "{evidence}/tokens"
    exec "{pulumi}" "$@" --client "{address}" --exec-kind auto.inline ;;
  *) exec "{pulumi}" "$@" ;;
esac
"""


@dataclass
class Pipeline:
    """A repository with its runner, and what the program of its stack declares."""

    runner: Runner
    there: Issuers
    evidence: Path
    network: dict[str, Any]

    def job(self, workflow: str, name: str, expected: int = 0) -> dict[str, str]:
        """Run a job in the environment that its workflow names."""
        job = read_yaml(ROOT / ".github" / "workflows" / f"{workflow}.yml")["jobs"][name]
        own = self.there.variables(self.runner.text(job["environment"])) if "environment" in job else {}
        self.runner.environment.update(own)
        return self.runner.job(workflow, name, expected)

    def deploy(self) -> None:
        """Run deploy.yml, each job with the outputs of those before it."""
        needs = self.runner.contexts["needs"] = {}
        for name in ("choose", "limit", "deploy"):
            needs[name] = {"outputs": self.job("deploy", name)}

    def create_stack(self) -> None:
        """Make the stack, with a secret in its file."""
        state_file(self.runner.contexts["vars"]["PULUMI_BACKEND_URL"], "llmd-oke", "reference")
        self.pulumi("config", "set", "--secret", "llmd-oke:huggingFaceToken", SECRET, "--stack", "reference")

    def pulumi(self, *words: str) -> str:
        """Run a command as somebody does by hand, with the backend and the passphrase that the jobs have."""
        contexts, environment = self.runner.contexts, self.runner.environment
        own = {"PULUMI_BACKEND_URL": contexts["vars"]["PULUMI_BACKEND_URL"], "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE}
        ended = subprocess.run(
            ["pulumi", *words, "--cwd", str(self.runner.checkout)],
            env={**os.environ, **environment, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not ended.returncode, ended.stderr
        return ended.stdout

    @property
    def summary(self) -> str:
        return (self.runner.checkout / "summary.md").read_text()

    def signers(self) -> list[str]:
        """The user of OCI that each use of the engine could be, as its cluster's token says."""
        tokens = [json.loads(line)["status"]["token"] for line in (self.evidence / "tokens").read_text().splitlines()]
        keys = [unquote(base64.urlsafe_b64decode(token).decode()).split('keyId="ST$')[1] for token in tokens]
        return [self.there.read(key.partition('"')[0])["sub"] for key in keys]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    release = catalogue.release("llm-d-0.9.0")
    if release is None or not (module_folder(release.crds.module, release.crds.version) / release.crds.folder).is_dir():
        pytest.skip("the definitions of llm-d-0.9.0, for the time limit, are not on this machine")
    engine = locate("pulumi")
    if engine is None:
        pytest.skip("no pulumi: llmd-oke rehearse programs builds it")
    network: dict[str, Any] = {"display_name": "net"}
    evidence, artifacts, programs = (tmp_path / name for name in ("evidence", "artifacts", "programs"))
    for folder in (evidence, artifacts, programs, tmp_path / "backend", tmp_path / "temporary"):
        folder.mkdir()
    own = {"Pulumi.yaml": PROJECT, "stacks/Pulumi.reference.yaml": yaml.safe_dump(document(stack(nodes=2)))}
    checkout = checkout_of(ROOT, tmp_path, own)
    oci = start(0, PluginOptions(time_scale=0.0001))
    with served(Issuers()) as there, language_server(_program(network)) as address:
        pulumi_script = PULUMI.format(evidence=evidence, pulumi=engine.path, address=address)
        for name, text in (("pulumi", pulumi_script), ("gh", GH.format(artifacts=artifacts))):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
        environment = {
            "LLMD_OKE_PROJECT": str(checkout),
            "PULUMI_DEBUG_PROVIDERS": f"oci:{oci.port}",
            "PULUMI_HOME": home_without_logs(tmp_path / "home"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "COLUMNS": "400",
            "TMPDIR": str(tmp_path / "temporary"),
            "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("components", "packages")),
        }
        contexts: dict[str, Any] = {
            "github": {"token": "t", "repository": "o/r"},
            "inputs": {"stack": "reference"},
            "matrix": {"stack": "reference"},
            "needs": {},
            "env": {},
            "vars": {
                "PULUMI_BACKEND_URL": f"file://{tmp_path / 'backend'}",
                "OCI_TOKEN_EXCHANGE_DOMAIN_URL": f"{there.url}/domain",
                "OCI_TOKEN_EXCHANGE_CLIENT_ID": CLIENT.split(":")[0],
            },
            "secrets": {
                "DEPLOY_PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
                "DRIFT_PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
                **{f"{name}_OCI_CLIENT_SECRET": CLIENT.split(":")[1] for name in ("DEPLOY", "DRIFT", "PREVIEW")},
            },
        }
        there.environments["drift"] = "viewer"
        yield Pipeline(Runner(checkout, artifacts, environment, contexts), there, evidence, network)
    oci.stop()


def _program(network: dict[str, Any]) -> Callable[[], None]:
    """A network, one of whose tags is a secret of the stack. Its properties are `network`, or what its `of` returns as
    the program runs.
    """

    def program() -> None:
        import pulumi_oci as oci  # noqa: PLC0415 - half a second of import time

        secret = pulumi.Config("llmd-oke").require_secret("huggingFaceToken")
        opts = pulumi.ResourceOptions(provider=oci.Provider("oci", region="us-ashburn-1"))
        place: Any = {"compartment_id": COMPARTMENT, "cidr_blocks": ["10.0.0.0/16"]}
        own = network["of"]() if "of" in network else network
        oci.core.Vcn("vcn", **place, **own, freeform_tags={"secret": secret.apply(lambda it: f"{it}!")}, opts=opts)
        if own["display_name"] == "fails" and not pulumi.runtime.is_dry_run():
            raise pulumi.RunError("the program ends after its network")

    return program


def list_artifact(pipeline: Pipeline, **run: object) -> None:
    """Say what runs have left: states of a feature, a fork and main."""
    of_main = {"head_branch": "main", "head_repository_id": 1, "repository_id": 1}
    artifacts = [
        {"id": "somebodys", "expired": False, "workflow_run": {**of_main, "head_branch": "feature"}},
        {"id": "a-fork", "expired": False, "workflow_run": {**of_main, "head_repository_id": 2}},
        {"id": "state-reference", "expired": False, "workflow_run": {**of_main, **run}},
    ]
    (pipeline.runner.artifacts / "list.json").write_text(json.dumps({"artifacts": artifacts}))


def test_steps_of_the_github_workflows_deploy_preview_and_inspect_a_stack(pipeline: Pipeline):
    runner = pipeline.runner
    pipeline.create_stack()
    pipeline.deploy()
    assert "+ oci:Core:Vcn vcn create" in runner.shown.replace("  ", " ") or "vcn created" in runner.shown
    packed = zipfile.ZipFile(runner.artifacts / "state-reference.zip").read("reference.json").decode()
    assert "oci:Core/vcn:Vcn" in packed
    assert SECRET not in packed
    assert PASSPHRASE not in packed

    list_artifact(pipeline)
    pipeline.network["display_name"] = "other"
    pipeline.job("preview", "preview")
    assert "Secrets of 1 resources are not known here" in pipeline.summary
    assert "### `reference`: 1 to update" in pipeline.summary
    assert "| update | Vcn vcn | displayName |" in pipeline.summary
    assert SECRET not in pipeline.summary + runner.shown

    pipeline.network["display_name"] = "net"
    pipeline.job("drift", "drift")
    assert "nothing was changed by hand" in pipeline.summary
    asked = (pipeline.evidence / "asked").read_text().splitlines()
    signed = {" ".join(line.split()[1:3]) for line in asked if line.startswith(("up ", "refresh ", "preview "))}
    assert signed == {"SecurityToken llmd-oke"}
    assert pipeline.signers() == ["deployer", "deployer", "viewer"]
    assert list((pipeline.evidence.parent / "temporary").glob("llmd-oke-*")) == []


def test_a_ci_job_uses_its_oidc_token_for_pulumi_cloud_and_leaves_no_credentials(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
):
    cloud = f"{pipeline.there.url}/pulumi"
    own = {"PULUMI_BACKEND_URL": cloud, ORGANIZATION: "acme", "PULUMI_HOME": pipeline.runner.environment["PULUMI_HOME"]}
    for name, value in {**own, **pipeline.there.variables("reference")}.items():
        monkeypatch.setenv(name, value)
    with job_signed_in(print, oci=False):
        folder = Path(os.environ["PULUMI_CREDENTIALS_PATH"])
        credentials = json.loads((folder / "credentials.json").read_text())
        assert credentials["accessTokens"] == {cloud: "pul-short-lived"}
        assert [file.name for file in folder.iterdir()] == ["credentials.json"]
    assert not folder.exists()
    assert "PULUMI_CREDENTIALS_PATH" not in os.environ
    monkeypatch.setenv(ORGANIZATION, "another")
    with pytest.raises(KitError, match="Pulumi Cloud doesn't take the job's token"), job_signed_in(print, oci=False):
        pytest.fail("signed in")


def test_a_pull_request_preview_says_that_main_has_published_no_stack_state(pipeline: Pipeline):
    list_artifact(pipeline, head_branch="feature")
    pipeline.job("preview", "preview")
    assert "no run on main has left state-reference" in pipeline.runner.shown
    assert "No preview: there is no state of it" in pipeline.summary
    assert not (pipeline.evidence / "asked").exists()


def test_a_ci_job_whose_oidc_token_is_refused_updates_no_stack(pipeline: Pipeline):
    pipeline.create_stack()
    pipeline.there.environments.clear()
    pipeline.runner.contexts["needs"] = {"choose": {"outputs": {"stack": "reference"}}}
    pipeline.job("deploy", "deploy", expected=1)
    assert "refuses the job's token with 401" in pipeline.runner.shown
    assert not [line for line in (pipeline.evidence / "asked").read_text().splitlines() if line.startswith("up")]
