"""Rehearsal of a stack's change: its earlier version is deployed on this machine, then updated to the new one."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_bench.history import stack_folder
from llmd_bench.passport import PASSPORT_JSON, Passport
from llmd_bench.reports import LATEST
from pydantic import ValidationError

from llmd_oke.pipelines.comment import changed_text
from llmd_oke.pipelines.promotion import StackDeployer
from llmd_oke.pipelines.records import PassportExcerpt, RehearsalReport
from llmd_oke.pipelines.revisions import REHEARSALS, REPORTS, commit_of, git, merge_base, revision_folder

_PERCENTILE = "p95"


def rehearse_change(project: Path, stack: str, revision: str | None, progress: Progress) -> RehearsalReport:
    """Rehearse the update of a stack from where the branch left `revision` to the project's files, and end the
    rehearsal. Without `revision`, or if nothing differs from it or the stack wasn't there, a new deployment is
    rehearsed.

    Raises:
        KitError: there is no such revision, or a rehearsal of the stack is there already.
    """
    head = commit_of(project, "HEAD")
    base = merge_base(project, revision) if revision else None
    same = base == head and not git(project, "status", "--porcelain")
    if base is not None and (same or not _has_stack(project, stack, base)):
        base = None
    if (project / REHEARSALS / stack / "cluster.json").exists():
        remedy = f"End it first: scripts/rehearse down --stack {stack}"
        raise KitError(f"A rehearsal of {stack} is there, which this one would update and end.", remedy)
    for name in (REHEARSALS, REPORTS):
        (project / name).mkdir(exist_ok=True)
    deployer = StackDeployer(project, stack, head, progress, rehearse=True)
    latest = project / REPORTS / stack_folder(stack) / LATEST
    seconds, note = 0.0, ""
    with ExitStack() as held:
        # Programs of the local cluster that the base's kit has started are files of this folder.
        folder = held.enter_context(revision_folder(project, base)) if base else None
        held.callback(deployer.end_rehearsal)
        if base and folder:
            before = deployer.deploy_files(base, folder)
            seconds += before.seconds
            if not before.passed:
                base, note = None, f"the stack as it was can't be rehearsed: {before.error}"
                deployer.end_rehearsal()
        earlier = latest.resolve()
        attempt = deployer.deploy_files(head, project)
    has_report = attempt.passed and latest.resolve() != earlier  # a stack may have no benchmark
    if base and attempt.new_cluster:
        base, note = None, f"the local cluster began anew, so that this was no update: {attempt.new_cluster}"
    return RehearsalReport(
        stack=stack,
        base=base,
        passed=attempt.passed,
        seconds=round(seconds + attempt.seconds, 1),
        changes="; ".join(filter(None, (changed_text(attempt.changes) if attempt.passed else "", note))),
        error=attempt.error,
        passports=tuple(_passports(latest)) if has_report else (),
    )


def _has_stack(project: Path, stack: str, commit: str) -> bool:
    try:
        git(project, "cat-file", "-e", f"{commit}:./stacks/Pulumi.{stack}.yaml")
    except KitError:
        return False
    return True


def _passports(folder: Path) -> Iterator[PassportExcerpt]:
    """Yield the figures of the passports of a report; one that can't be read is left out."""
    for path in sorted(folder.rglob(PASSPORT_JSON)):
        try:
            passport = Passport.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            continue
        speed, proof = passport.performance, passport.remote_prefill or {}
        ttft_ms, itl_ms = (cast("Mapping[str, float]", speed.get(name) or {}) for name in ("ttft_ms", "itl_ms"))
        yield PassportExcerpt(
            model=passport.model,
            topology=passport.topology,
            basis=f"{passport.basis}",
            smoke_passed=passport.smoke_passed,
            failed_checks=tuple(str(check["name"]) for check in passport.checks if not check["passed"]),
            ttft_p95_ms=ttft_ms.get(_PERCENTILE),
            itl_p95_ms=itl_ms.get(_PERCENTILE),
            output_tokens_per_s=speed.get("output_tokens_per_s"),
            remote_prefill_share=proof.get("share"),
            accuracy=str(passport.accuracy or ""),
            usd_per_million_output_tokens=passport.usd_per_million_output_tokens,
            config_hash=passport.config_hash,
        )
