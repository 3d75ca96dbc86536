"""A project of the user's, with a small stack, rehearsed through the command line."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmd_rehearsal import namespaces
from llmd_rehearsal.inventory import CONTROL_PLANE, ENGINE, IN_PODS
from llmd_rehearsal.local_cluster import LocalCluster
from llmd_rehearsal.running_rehearsals import command_environment, rehearsal_folder

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 900
TIME_SCALE = "2"
"""The slower model time passes, the less often endpoint pickers read servers: most of what a small stack costs."""
SAVING_LAST = {"PULUMI_EXPERIMENTAL": "true", "PULUMI_SKIP_CHECKPOINTS": "true"}
"""Has an engine save its state once (docs/how-to/large-stacks.md)."""
PLANTED = {
    "HF_TOKEN": "hf_planted_token_0123456789",
    "LLMD_OKE_BENCH_TOKEN": "planted-bench-token-0123456789",
    "VLLM_API_KEY": "planted-api-key-0123456789",
    "PULUMI_ACCESS_TOKEN": "pul-planted-0123456789",
    "AWS_SECRET_ACCESS_KEY": "planted-access-key-0123456789",
}
"""Secrets that a user's shell has. Nothing of a rehearsal may keep or pass on any of them."""


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    status: int
    output: str
    errors: str

    @property
    def document(self) -> dict[str, Any]:
        """The command's output, read as JSON."""
        return json.loads(self.output)


@dataclass(frozen=True)
class Project:
    """A copy of the kit's program with stacks of its own."""

    folder: Path

    def write(self, stack: str, *, secrets: Sequence[str] = (), **changes: Any) -> None:
        """Write a stack file: one node, one small unit, and what is changed; None leaves a key out. `secrets` are keys
        of secrets that the user has set.
        """
        config = {
            "cluster": {"mode": "existing", "identifier": stack},
            "gpuPools": [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 1}],
            "release": "llm-d-0.9.0",
            "models": [model()],
            "smoke": {"requests": 8, "concurrency": 2},
        }
        expected = {key: value for key, value in {**config, **changes}.items() if value is not None}
        hidden = {f"llmd-oke:{key}": {"secure": "v1:of-the-user"} for key in secrets}
        document = {"config": {"llmd-oke:stack": expected, **hidden}}
        (self.folder / "stacks" / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump(document))

    def environment(self, *, saves_steps: bool = False) -> dict[str, str]:
        """The environment of commands in the project. Engines save their state as they end, and with `saves_steps`
        after each step, which a test needs where one is not to come to its end.
        """
        own = {**PLANTED, "LLMD_OKE_PROJECT": str(self.folder)}
        return {**os.environ, **({} if saves_steps else SAVING_LAST), **own}

    def command(self, *arguments: str) -> Ended:
        """Run `llmd-oke` in the project; one that doesn't end fails the test with its last lines."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "llmd_oke", *arguments],
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            lines = (error.stderr or b"").decode()[-2000:]
            pytest.fail(f"llmd-oke {' '.join(arguments)} did not end within {LIMIT_S} s:\n{lines}")
        return Ended(done.returncode, done.stdout, done.stderr)

    def inside(self, stack: str, *argv: str) -> Ended:
        """Run a program inside a stack's local cluster, as `llmd-oke rehearse run` does; fail the test if it fails."""
        cluster = LocalCluster(rehearsal_folder(self.folder, stack))
        done = cluster.run_inside(argv, env=command_environment(cluster), folder=self.folder, timeout_s=LIMIT_S)
        assert done.returncode == 0, done.stderr + done.stdout
        return Ended(0, done.stdout, done.stderr)

    def rehearse(self, stack: str) -> Ended:
        """Rehearse a stack, with JSON as output."""
        return self.command("rehearse", "--stack", stack, "--json", "--time-scale", TIME_SCALE)


def model(**changes: Any) -> dict[str, Any]:
    """A model of a stack file."""
    workload = {"inputTokens": 1024, "outputTokens": 16}
    return {"model": "gpt-oss-120b", "topology": "2p-tp1-1d-tp2", "workload": workload, **changes}


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose rehearsals end with the tests of a module (conftest.py)."""
    _need_programs()
    folder = tmp_path_factory.mktemp("project")
    (folder / "stacks").mkdir()
    for name in ("Pulumi.yaml", "__main__.py"):
        shutil.copyfile(ROOT / name, folder / name)
    return Project(folder)


def _need_programs() -> None:
    result = Path(os.environ["LLMD_OKE_PROGRAMS"])
    missing = [name for name in (*CONTROL_PLANE, *ENGINE, *IN_PODS) if not (result / name).exists() and name != "envoy"]
    missing += [name for name in ("bwrap", "ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: scripts/test builds and installs them")
    command = namespaces.create_command(["true"], user_namespace=os.geteuid() != 0)
    tried = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this machine allows no namespaces: {tried.stderr.strip()}")
