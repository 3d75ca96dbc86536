"""Jobs of the workflows, run on this machine: their steps in order, with the environment that each step says."""

import json
import os
import re
import shutil
import subprocess
import sysconfig
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from llmd_oke.values import read_yaml

WORKFLOWS = Path(__file__).resolve().parents[1] / ".github" / "workflows"
_EXPRESSION = re.compile(r"\$\{\{(.+?)\}\}")

GH = """#!/bin/sh
# What `gh` answers: artifacts of a repository, listed and packed; those of this run, unpacked; environments, comments.
case "$1 $2" in
  "run download")
    shift 2
    while [ "$#" -gt 0 ]; do
      case "$1" in --dir) folder=$2 ;; --name) name=$2 ;; esac
      shift
    done
    for packed in "{artifacts}"/${{name:-*}}.zip; do
      [ -n "$name" ] && to=$folder || to=$folder/$(basename "$packed" .zip)
      mkdir -p "$to" && python3 -m zipfile -e "$packed" "$to"
    done
    exit ;;
esac
case "$*" in
  "api repos/o/r/issues/7/comments --paginate"*)
    jq -r "$5" "{artifacts}/comments.json"; exit ;;
  "api --silent --method "*)
    for word in "$@"; do case "$word" in body=@*) body=${{word#body=@}} ;; esac; done
    jq -nc --arg method "$4" --arg path "$5" --rawfile body "$body" '{{$method, $path, $body}}' \
      >> "{artifacts}/posted.json"
    exit ;;
esac
case "$2" in
  */environments/*) cat "{artifacts}/environment.json" ;;
  */actions/artifacts\\?name=*)
    jq -r "$4" "{artifacts}/list.json" ;;
  */zip) cat "{artifacts}/$(basename "$(dirname "$2")").zip" ;;
  *) exit 9 ;;
esac
"""


@dataclass
class Runner:
    """A runner with a checkout. `contexts` are what expressions ask for (`vars`, `secrets`, ...), by their names."""

    checkout: Path
    artifacts: Path
    environment: dict[str, str]
    contexts: dict[str, Any] = field(default_factory=dict[str, Any])
    shown: str = ""

    def job(self, workflow: str, name: str, expected: int = 0) -> dict[str, str]:
        """Run a job; return its outputs. Its first step that fails ends with the expected status, or none does."""
        job: dict[str, Any] = read_yaml(WORKFLOWS / f"{workflow}.yml")["jobs"][name]
        said_env: dict[str, Any] = job.get("env") or {}
        self.contexts["env"] = {key: self.text(value) for key, value in said_env.items()}
        failed, steps = 0, dict[str, Any]()
        for step in job["steps"]:
            condition = str(step.get("if", "success()"))
            if failed and not re.search(r"always\(\)|cancelled\(\)", condition):
                continue
            if "uses" in step:
                self._use(step)
                continue
            status, outputs = self._run(step)
            failed = failed or status
            steps[step.get("id", "")] = {"outputs": outputs}
        assert failed == expected, self.shown
        self.contexts["steps"] = steps
        outputs: dict[str, Any] = job.get("outputs") or {}
        return {key: self.text(value) for key, value in outputs.items()}

    def step(self, workflow: str, job: str, name: str, expected: int = 0) -> None:
        """Run one step of a job, by its name, which ends with the expected status."""
        steps: list[dict[str, Any]] = read_yaml(WORKFLOWS / f"{workflow}.yml")["jobs"][job]["steps"]
        (step,) = [step for step in steps if step.get("name") == name]
        status, _ = self._run(step)
        assert status == expected, self.shown

    def text(self, value: object) -> str:
        """A value with its expressions replaced."""
        return _EXPRESSION.sub(lambda match: self._value(match[1]), str(value))

    def _value(self, expression: str) -> str:
        for choice in expression.split("||"):
            value = ""
            for term in choice.split("&&"):
                value = self._term(term.strip())
                if not value:
                    break
            if value:
                return value
        return ""

    def _term(self, term: str) -> str:
        if term.startswith("'"):
            return term.strip("'")
        if indexed := re.fullmatch(r"fromJSON\((.+)\)\[(\d+)\]", term):
            return str(json.loads(self._term(indexed[1]))[int(indexed[2])])
        found: Any = self.contexts
        for part in term.split("."):
            found = found.get(part, "") if isinstance(found, Mapping) else ""  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return str(found or "")  # pyright: ignore[reportUnknownArgumentType]

    def _run(self, step: dict[str, Any]) -> tuple[int, dict[str, str]]:
        said = {name: self.checkout.parent / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in said.values():
            file.write_text("")
        said_env: dict[str, Any] = step.get("env") or {}
        own = {key: self.text(value) for key, value in {**self.contexts.get("env", {}), **said_env}.items()}
        environment = {**os.environ, **self.environment, **own, **{name: str(path) for name, path in said.items()}}
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]  # as GitHub runs them
        ended = subprocess.run(argv, cwd=self.checkout, env=environment, capture_output=True, text=True, check=False)
        self.shown += f"--- {step['run']}\n{ended.stdout}{ended.stderr}"
        lines = said["GITHUB_OUTPUT"].read_text().splitlines()
        return ended.returncode, dict(line.split("=", 1) for line in lines)

    def _use(self, step: dict[str, Any]) -> None:
        """Do what matters here of an action: keep artifacts, where there is something to keep."""
        action = step["uses"].partition("@")[0]
        others = {"actions/cache", "actions/checkout", "actions/setup-python", "pulumi/actions"}
        assert action in {*others, "actions/upload-artifact"}
        if action != "actions/upload-artifact":
            return
        found = sorted(self.checkout.glob(step["with"]["path"].rstrip("/")))
        if not found:
            return
        name = self.text(step["with"]["name"])
        with zipfile.ZipFile(self.artifacts / f"{name}.zip", "w") as archive:
            for path in found:
                for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                    archive.write(file, file.relative_to(path if path.is_dir() else path.parent))


def checkout_of(root: Path, folder: Path, own: Mapping[str, str]) -> Path:
    """A checkout with these tests' environment: links to the repository's files, and these files in their place."""
    checkout = folder / "checkout"
    checkout.mkdir()
    replaced = {Path(name).parts[0] for name in own} | {".venv", ".git", "reports", "states"}
    for item in root.iterdir():
        if item.name not in replaced:
            (checkout / item.name).symlink_to(item)
    for name, text in own.items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(text)
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "bin").symlink_to(sysconfig.get_path("scripts"))
    lock = (root / "requirements.lock").read_bytes() + (root / "pyproject.toml").read_bytes()
    (checkout / ".venv" / f".requirements-{sha256(lock).hexdigest()[:16]}").touch()  # as scripts/setup leaves it
    return checkout


def has_programs() -> bool:
    """Tell whether this machine has what the steps call."""
    return all(map(shutil.which, ("bash", "jq", "bwrap", "ip", "unshare")))
