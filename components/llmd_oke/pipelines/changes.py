"""Changes of stacks between two commits: which stacks a change touches, and what differs.

A stack is touched if its plan, settings or declared resources differ, whatever file of the repository is the reason.
Both sides are rendered by the kit's code of their own commit, in a process each.
"""

import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from llmd_base.errors import KitError
from llmd_base.progress import Progress

from llmd_oke.pipelines.records import ProjectChanges, Snapshots, StackSnapshot, TouchedStack, read_record
from llmd_oke.pipelines.revisions import commit_of, kit_command, merge_base, revision_folder

SNAPSHOT_LIMIT_S = 600.0
"""Limit in seconds for the snapshots of all stacks at one of the two commits; a stack takes about 2 s."""


def changes_since(project: Path, revision: str, progress: Progress, diagrams: Path | None = None) -> ProjectChanges:
    """Compare the stacks of the project's files with those of the commit at which the branch left `revision`; return
    the changes.

    Args:
        project: the project, in a Git repository with its history.
        revision: commit or branch to compare with.
        progress: receiver of messages.
        diagrams: folder for the diagram of each stack that can be deployed (`STACK.svg`); none are drawn if left out.

    Raises:
        KitError: there is no such revision, or the stacks of the project's files can't be read.
    """
    base, head = merge_base(project, revision), commit_of(project, "HEAD")
    progress.step(f"comparing stacks with those at {base[:12]}")
    with revision_folder(project, base) as before, ThreadPoolExecutor(2) as pool:
        old = pool.submit(_snapshots, before, base, None)
        new = pool.submit(_snapshots, project, head, diagrams)
        new_side = new.result()
        try:
            return compared(old.result(), new_side, base, head)
        except KitError as error:
            note = f"stacks at {base[:12]} can't be compared, so that each one counts as new: {error.message}"
            return compared(Snapshots(commit=base, requirements="", stacks=()), new_side, base, head, note)


def compared(old: Snapshots, new: Snapshots, base: str, head: str, *notes: str) -> ProjectChanges:
    """Return the changes of a project's stacks from one commit's snapshots to another's."""
    before, after = ({item.stack: item for item in side.stacks} for side in (old, new))
    found = [_change(before.get(name), after.get(name), name) for name in sorted({*before, *after})]
    told = list(notes)
    if old.stacks and old.requirements != new.requirements:
        told.append("the locked packages differ; both sides were rendered with the new ones")
    unrendered = [item.stack for item in new.stacks if item.unrendered]
    if unrendered:
        told.append(f"compared by their plans alone, as their programs can't be run here: {', '.join(unrendered)}")
    return ProjectChanges(
        base=base,
        head=head,
        changes=tuple(item for item in found if isinstance(item, TouchedStack)),
        untouched=tuple(item for item in found if isinstance(item, str)),
        notes=tuple(told),
    )


def _change(before: StackSnapshot | None, after: StackSnapshot | None, name: str) -> TouchedStack | str:
    """Return the change of a stack, or its name if nothing differs."""
    old: Mapping[str, str] = before.resources if before else {}
    new: Mapping[str, str] = after.resources if after else {}
    # A side whose program could not be run has no resources to compare with.
    rendered = not any(side and (side.unrendered or side.problems) for side in (before, after))
    names = (old.keys() | new.keys()) if rendered else set(old.keys() & new.keys())
    if before and after and before == after:
        return name
    return TouchedStack(
        stack=name,
        kind="new" if before is None else "removed" if after is None else "changed",
        before=before,
        after=after,
        created=tuple(sorted(key for key in names if key not in old)),
        changed=tuple(sorted(key for key in names if key in old and key in new and old[key] != new[key])),
        deleted=tuple(sorted(key for key in names if key not in new)),
    )


def _snapshots(folder: Path, commit: str, diagrams: Path | None) -> Snapshots:
    """Take the snapshots of a folder's stacks in a process of their own, by the code that the folder has.

    Raises:
        KitError: the command fails, or doesn't end within its limit.
    """
    with TemporaryDirectory(prefix="llmd-oke-") as temporary:
        file = Path(temporary) / "snapshots.json"
        drawn = ["--diagrams", str(diagrams)] if diagrams else []
        argv, variables = kit_command(
            folder, ["pipeline", "snapshot", "--commit", commit, "--output", str(file), *drawn]
        )
        try:
            ended = subprocess.run(
                argv,
                cwd=folder,
                env={**os.environ, **variables, "PYTHONHASHSEED": "0"},  # so that equal sets have equal texts
                capture_output=True,
                text=True,
                check=False,
                timeout=SNAPSHOT_LIMIT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise KitError(f"`llmd-oke pipeline snapshot` does not end within {SNAPSHOT_LIMIT_S:g} s.") from error
        if ended.returncode:
            raise KitError(f"`llmd-oke pipeline snapshot` failed: {ended.stderr.strip()[-500:]}")
        return read_record(file, Snapshots)
