"""The Pulumi CLI, as far as the kit uses it."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmd_oke.errors import KitError
from llmd_oke.operations.previews import Preview, parse


@dataclass(frozen=True)
class Ended:
    """A command that ended; `output` is empty where it went to the terminal."""

    status: int
    output: str = ""
    errors: str = ""


Run = Callable[[Sequence[str], bool], Ended]
"""Runs a command; the second argument says whether its output is wanted instead of shown."""


def run(argv: Sequence[str], capture: bool) -> Ended:
    """Runs a command for real. It may ask the user, so it has no limit; the engine's waits have theirs."""
    done = subprocess.run(list(argv), check=False, capture_output=capture, text=True)
    return Ended(done.returncode, done.stdout or "", done.stderr or "")


@dataclass(frozen=True)
class PulumiCli:
    """Operations of one stack."""

    project: Path
    stack: str
    program: str
    run: Run = run

    def preview(self) -> Preview:
        """What an update would do.

        Raises:
            KitError: the CLI gave no preview; says why.
        """
        ended = self._run("preview", "--json", "--show-sames", "--non-interactive", capture=True)
        if ended.status and not ended.output.strip().startswith("{"):
            raise KitError(f"`pulumi preview` failed:\n{(ended.errors or ended.output).strip()}")
        preview = parse(ended.output)
        if ended.status and not preview.errors:
            return replace(preview, errors=(ended.errors.strip() or f"the CLI ended with status {ended.status}",))
        return preview

    def up(self, *, yes: bool, skip_preview: bool = False) -> int:
        """Updates the stack; the answer is the CLI's exit code."""
        return self._run("up", *_yes(yes), *(["--skip-preview"] if skip_preview else [])).status

    def destroy(self, *, yes: bool, targets: Sequence[str] = ()) -> int:
        """Destroys the stack, or the targets and what depends on them."""
        chosen = [word for urn in targets for word in ("--target", urn)]
        return self._run("destroy", *_yes(yes), *chosen, *(["--target-dependents"] if targets else [])).status

    def unprotect(self, urns: Sequence[str]) -> int:
        """Takes the protection of resources away; 0 where all went well."""
        return max((self._run("state", "unprotect", urn, "--yes").status for urn in urns), default=0)

    def resources(self) -> list[dict[str, Any]]:
        """The resources of the stack's state.

        Raises:
            KitError: the state can't be read.
        """
        ended = self._run("stack", "export", capture=True)
        try:
            return list(json.loads(ended.output)["deployment"].get("resources") or [])
        except (ValueError, KeyError, AttributeError) as error:
            raise KitError(f"The stack's state can't be read:\n{(ended.errors or ended.output).strip()}") from error

    def _run(self, *words: str, capture: bool = False) -> Ended:
        return self.run([self.program, *words, "--stack", self.stack, "--cwd", str(self.project)], capture)


def pulumi_cli(project: Path, stack: str) -> PulumiCli:
    """The Pulumi CLI on PATH.

    Raises:
        KitError: there is none.
    """
    program = shutil.which("pulumi")
    if program is None:
        raise KitError("`pulumi` is not on PATH.", "Install the Pulumi CLI: https://www.pulumi.com/docs/install/")
    return PulumiCli(project, stack, program)


def _yes(yes: bool) -> list[str]:
    return ["--yes"] if yes else []
