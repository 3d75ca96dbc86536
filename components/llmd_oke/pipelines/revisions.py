"""Git revisions of a project: checkouts in temporary folders, and the kit's commands that run on them.

In a checkout of the kit a revision brings the kit's code and data with it, so a command runs on those.
"""

import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from llmd_base.errors import KitError

from llmd_oke.values import is_checkout

GIT_LIMIT_S = 300.0
"""Limit in seconds of one Git command; a blobless clone of a large repository takes a minute."""

REQUIREMENTS = ("requirements.lock", "requirements-oci.lock", "pyproject.toml")
"""Files of a checkout of the kit that determine the packages in its environment."""

REHEARSALS, REPORTS = ".rehearsal", "reports"

_LINKED = (".venv", REHEARSALS, REPORTS)
"""Ignored folders of a project that a revision shares: its environment, its rehearsals, and its reports."""


def git(folder: Path, *words: str, limit_s: float = GIT_LIMIT_S) -> str:
    """Run Git in a folder, without hooks and prompts; return its standard output without surrounding blanks.

    Raises:
        KitError: Git isn't installed, fails, or doesn't end within `limit_s`.
    """
    argv = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *words]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        ended = subprocess.run(
            argv,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise KitError("There is no git on PATH, by which revisions are read.", "Install git.") from error
    except subprocess.TimeoutExpired as error:
        raise KitError(f"`git {words[0]}` does not end within {limit_s:g} s.") from error
    if ended.returncode:
        raise KitError(f"`git {words[0]}` failed: {(ended.stderr or ended.stdout).strip()[-500:]}")
    return ended.stdout.strip()


def commit_of(project: Path, revision: str) -> str:
    """Return the full hash of a revision's commit.

    Raises:
        KitError: the project's repository has no such revision, or the project is in no repository.
    """
    try:
        return git(project, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except KitError as error:
        remedy = "In a job: check out with its history (`fetch-depth: 0`, `GIT_DEPTH: 0`)."
        raise KitError(f"The repository of {project} has no commit {revision!r}.", remedy) from error


def merge_base(project: Path, revision: str) -> str:
    """Return the commit at which the checked-out branch left a revision.

    Raises:
        KitError: there is no such revision, or the two have no commit in common.
    """
    return git(project, "merge-base", commit_of(project, revision), "HEAD")


@contextmanager
def revision_folder(project: Path, commit: str) -> Generator[Path]:
    """Yield a temporary folder with the project's files at a commit, which is removed after the block. It shares the
    project's rehearsals and reports, and its environment if both are installed by the same requirements.

    Raises:
        KitError: the repository doesn't have the commit, or the commit doesn't have the project.
    """
    prefix = git(project, "rev-parse", "--show-prefix")
    with TemporaryDirectory(prefix="llmd-oke-") as folder:
        tree = Path(folder) / "revision"
        git(project, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            copy = tree / prefix
            if not (copy / "Pulumi.yaml").is_file():
                raise KitError(f"There is no project in {prefix or 'the repository'} at {commit[:12]}.")
            for name in _LINKED:
                shared = name != ".venv" or same_requirements(project, copy)
                if shared and (project / name).exists() and not (copy / name).exists():
                    (copy / name).symlink_to((project / name).resolve())
            yield copy
        finally:
            git(project, "worktree", "remove", "--force", str(tree))


def same_requirements(one: Path, other: Path) -> bool:
    """Return True if two revisions of a project are installed by the same requirements."""
    return all(_content(one / name) == _content(other / name) for name in REQUIREMENTS)


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def kit_command(folder: Path, words: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
    """Return the argument list and the additional environment variables that run `llmd-oke WORDS` on a project's
    folder; in a checkout of the kit, by the kit's own code at that revision.
    """
    environment = {"LLMD_OKE_PROJECT": str(folder)}
    if is_checkout(folder):
        environment["PYTHONPATH"] = os.pathsep.join(str(folder / name) for name in ("components", "packages"))
    return [sys.executable, "-m", "llmd_oke", *words], environment
