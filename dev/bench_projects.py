"""Pulumi projects for benchmarks: copies of a project's program with one stack file each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from llmd_oke.config import CONFIG_KEY, read, stack_file
from llmd_oke.config.yaml_files import text_of


@dataclass(frozen=True)
class BenchProject:
    """Directory of a Pulumi project with one stack."""

    folder: Path
    stack: str

    def write_stack(self, config: Mapping[str, Any]) -> None:
        """Write the stack file of the project's stack."""
        file = stack_file(self.folder, self.stack)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text_of({"config": {CONFIG_KEY: dict(config)}}))

    def command(self, *arguments: str, limit_s: float) -> str:
        """Run an `llmd-oke` command in the project for at most `limit_s` seconds, and return its standard output.

        Raises:
            KitError: the command failed.
        """
        done = subprocess.run(
            [sys.executable, "-m", "llmd_oke", *arguments],
            env={**os.environ, "LLMD_OKE_PROJECT": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if done.returncode != 0:
            raise KitError(f"llmd-oke {' '.join(arguments[:2])} failed: {done.stderr.strip()[-2000:]}")
        return done.stdout


def project_copy(source: Path, folder: Path, stack: str, program: str | None = None) -> BenchProject:
    """Create a Pulumi project without stack file, with the program of the project in `source` or with the text
    `program`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "Pulumi.yaml", folder / "Pulumi.yaml")
    text = (source / "__main__.py").read_text() if program is None else program
    (folder / "__main__.py").write_text(text)
    return BenchProject(folder, stack)


def with_change(
    source: Path, stack: str, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> BenchProject:
    """Create a Pulumi project with a copy of a stack whose configuration `change` modifies."""
    project = project_copy(source, folder, stack)
    project.write_stack(change(read(source, stack)))
    return project
