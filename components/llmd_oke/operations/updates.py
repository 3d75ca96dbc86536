"""An update with what comes before it: a look at what was changed by hand, a preview that is judged, and servers that
have to go first.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from llmd_oke.errors import KitError
from llmd_oke.operations import drift, guards
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.order import displacement
from llmd_oke.operations.previews import Preview
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.operations.recovery import ClientOf, no_client, recover, recover_unanswered
from llmd_oke.planning import Plan
from llmd_oke.progress import Progress

Confirm = Callable[[str], bool]


def update(
    pulumi: PulumiCli,
    plan: Plan,
    progress: Progress,
    confirm: Confirm,
    *,
    yes: bool,
    allow_replace: bool,
    client: ClientOf = no_client,
    bound: bool = True,
) -> int:
    """Brings a stack to its file; the answer is the CLI's exit code. `confirm` asks before anything is deleted early,
    `client` gives a client of OCI for what a killed engine had begun. With `bound` the engine refuses what the preview
    that was judged doesn't have, as far as previews can say it.

    Raises:
        KitError: there is no preview, or it would take a guarded resource away, or OKE would refuse a version, or
            something pending can't be matched.
    """
    recover(pulumi, progress, client)
    told = _read_drift(pulumi, progress)
    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # for its owner alone
        kept = Path(folder) / "plan.json" if bound else None
        progress.step("previewing the update")
        preview = pulumi.preview(kept)
        _tell(drift.found_in_preview(preview.changes, told), progress)
        _judge(preview, allow_replace=allow_replace)
        if allow_replace and unprotect(pulumi, preview, progress):
            preview = _previewed_again(pulumi, kept, progress)
        _refuse_errors(preview)
        first = displacement(preview, plan.gpus)
        if first is not None:
            progress.step(str(first))
            if not yes and not confirm("Delete them now?"):
                return 1
            if status := pulumi.destroy(yes=True, targets=[change.urn for change in first.first]):
                return status
            preview = _previewed_again(pulumi, kept, progress)
            _judge(preview, allow_replace=allow_replace)
            _refuse_errors(preview)
        upgraded = [f"{change.name} {before} -> {after}" for before, after, change in guards.upgrades(preview)]
        if upgraded:
            progress.step(f"Kubernetes, one after the other: {', '.join(upgraded)}")
        kept = kept if _can_be_bound(pulumi, preview, progress) else None
        for resource in guards.unjudged(preview, allowed=allow_replace):
            progress.step(f"not judged: {resource}")
        event_log = Path(folder) / "events.jsonl"
        status = pulumi.up(yes=yes, skip_preview=yes, one_at_a_time=bool(upgraded), plan=kept, event_log=event_log)
        if status:
            recover_unanswered(pulumi, event_log, progress, client)
        return status


def _judge(preview: Preview, *, allow_replace: bool) -> None:
    guards.refuse_losses(preview, allowed=allow_replace)
    guards.refuse_skipped_versions(preview)


def _previewed_again(pulumi: PulumiCli, kept: Path | None, progress: Progress) -> Preview:
    """What is left of an update after what was done to the stack before it."""
    progress.step("previewing what is left of the update")
    return pulumi.preview(kept)


def _refuse_errors(preview: Preview) -> None:
    if preview.errors:
        raise KitError("The preview failed:\n" + "\n".join(preview.errors))


def _can_be_bound(pulumi: PulumiCli, preview: Preview, progress: Progress) -> bool:
    """Whether the engine can hold the update to the preview that was judged; otherwise says why not.

    Values that only the update knows can't be planned: Pulumi 3.250 refuses creations for dependencies that it learns
    of with the values (`violates plan: dependencies for nodeMetadata changed`). Nor can what a refresh will find.
    """
    open_ended = [change for change in preview.effective if change.unknown]
    if not open_ended and not pulumi.refresh:
        return True
    reasons = [f"{len(open_ended)} resources have inputs that only the update will know"] if open_ended else []
    reasons += ["the update reads first what others have changed"] if pulumi.refresh else []
    progress.step(f"the update is not bound to this preview: {'; '.join(reasons)}")
    return False


def _read_drift(pulumi: PulumiCli, progress: Progress) -> list[Drift]:
    """Tells what was changed by hand, and has the stack's state say it too, so that the update takes it back.

    Raises:
        KitError: the state can't be changed.
    """
    found = drift.look(pulumi, progress)
    _tell(found, progress)
    urns = drift.to_read(found)
    if urns and not pulumi.refresh and pulumi.read(urns):
        raise KitError("What was changed by hand can't be read into the stack's state.", "`pulumi refresh` says why.")
    return found


def _tell(found: Sequence[Drift], progress: Progress) -> None:
    for each in found:
        progress.step(f"changed by hand: {each}")


def unprotect(pulumi: PulumiCli, preview: Preview, progress: Progress) -> list[str]:
    """Takes the protection of what would go away; the answer is what was protected. The engine's error names the
    first such resource only, as far as it got.

    Raises:
        KitError: the state can't be changed.
    """
    going = {change.urn for change in guards.losses(preview)}
    if not going and not preview.errors:
        return []
    told = "\n".join(preview.errors)
    chosen = [urn for urn in protected_urns(pulumi) if urn in going or urn in told]
    for urn in chosen:
        progress.detail(f"no longer protected: {urn.rsplit('::', 1)[-1]}")
    if pulumi.unprotect(chosen):
        raise KitError("The protection can't be taken away.", "`pulumi state unprotect` said why.")
    return chosen


def destroy(pulumi: PulumiCli, progress: Progress, *, yes: bool, unprotect: bool, client: ClientOf = no_client) -> int:
    """Destroys a stack, with what a killed engine had begun; the answer is the CLI's exit code.

    Raises:
        KitError: something is protected and `unprotect` isn't given, or something pending can't be matched.
    """
    recover(pulumi, progress, client)
    protected = protected_urns(pulumi)
    guards.refuse_protected(protected, allowed=unprotect)
    if protected:
        names = ", ".join(urn.rsplit("::", 1)[-1] for urn in protected)
        progress.step(f"no longer protected: {names}")
        if status := pulumi.unprotect(protected):
            return status
    return pulumi.destroy(yes=yes)


def protected_urns(pulumi: PulumiCli) -> list[str]:
    """The protected resources of a stack's state."""
    return [str(resource["urn"]) for resource in pulumi.resources() if resource.get("protect")]
