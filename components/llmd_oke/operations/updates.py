"""Updates with what comes before them: a look at changes by hand, a preview that is judged, servers that go first."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_pods.acceptance import NAMESPACE as ACCEPTANCE_NAMESPACE

from llmd_oke.catalogue.operations import oci_resources
from llmd_oke.catalogue.operators import cluster_autoscaler
from llmd_oke.config import CreateCluster
from llmd_oke.operations import drift, guards
from llmd_oke.operations.drift import Drift
from llmd_oke.operations.guards import displacement
from llmd_oke.operations.previews import Preview, failures_of_events
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.operations.recovery import ClientOf, no_client, recover, recover_unanswered
from llmd_oke.planning import Plan

Confirm = Callable[[str], bool]


Resource = Mapping[str, Any]
"""A resource of a stack's state, as `pulumi stack export` tells it."""


ADD_ON = "oci:ContainerEngine/addon:Addon"


def with_refresh(pulumi: PulumiCli, plan: Plan) -> PulumiCli:
    """The CLI, with a refresh where the state is wrong: the cluster autoscaler changes pools, or did until this update,
    so that a pool that goes back to a fixed size could look as if it had it already; or something is gone again whose
    creation failed.

    Raises:
        KitError: the stack's state can't be read.
    """
    refresh = plan.created is not None and plan.created.autoscaler is not None
    if not refresh and isinstance(plan.cluster, CreateCluster) and plan.layer != "serving":
        resources, autoscaler = pulumi.resources(), cluster_autoscaler().name
        refresh = any(is_gone_after_failure(resource) for resource in resources) or any(
            resource["type"] == ADD_ON and resource["inputs"]["addonName"] == autoscaler for resource in resources
        )
    return replace(pulumi, refresh=refresh)


def is_gone_after_failure(resource: Resource) -> bool:
    """Tell whether a failure may have taken back what the state still has.

    An acceptance that failed has deleted its bindings. OCI or its plug-in takes back what could not be created.
    The state has its id all the same, so that each update would fail, for want of something to update. The error says
    what failed: a creation, or an update that found nothing, whose error takes the place of the creation's. Where it
    says neither, the recorded state decides. What failed in an update is there still; the next update goes on with it,
    and a refresh would forget that there was something to do.
    """
    errors = "\n".join(resource.get("initErrors") or ())
    if errors and resource["type"] == "kubernetes:batch/v1:Job":
        return resource["inputs"]["metadata"].get("namespace") == ACCEPTANCE_NAMESPACE
    if not errors or not str(resource["type"]).startswith("oci:"):
        return False
    state: Mapping[str, Any] = resource.get("outputs") or {}
    return bool(_GONE.search(errors)) or state.get("state") not in oci_resources().created


_GONE = re.compile(r"^creating urn:|\b404-NotAuthorizedOrNotFound\b", re.MULTILINE)
"""How errors say that something may be gone: the bridge of Terraform's providers writes `creating URN: ...`, later
`updating URN: ...` (pulumi-terraform-bridge, pkg/tfbridge/provider.go), and OCI's provider the status and the code."""


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
    """Bring a stack to its file; return the CLI's exit code. `confirm` asks before anything is deleted early, `client`
    gives a client of OCI for what a killed engine had begun. With `bound` the engine refuses what the preview that was
    judged doesn't have, as far as previews can say it.

    Raises:
        KitError: there is no preview, or it would take a guarded resource away, or OKE would refuse a version, or
            something pending can't be matched.
    """
    recover(pulumi, progress, client)
    by_hand = _read_drift(pulumi, progress)
    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # for its owner alone
        plan_file = Path(folder) / "plan.json" if bound else None
        progress.step("previewing the update")
        preview = pulumi.preview(plan_file)
        _tell(drift.drift_of_preview(preview.changes, by_hand), progress)
        _judge(preview, allow_replace=allow_replace)
        if allow_replace and unprotect(pulumi, preview, progress):
            preview = _preview_rest(pulumi, plan_file, progress)
        _refuse_errors(preview)
        first = displacement(preview, plan.gpus)
        if first is not None:
            progress.step(str(first))
            if not yes and not confirm("Delete them now?"):
                return 1
            if status := pulumi.destroy(yes=True, targets=[change.urn for change in first.first]):
                return status
            preview = _preview_rest(pulumi, plan_file, progress)
            _judge(preview, allow_replace=allow_replace)
            _refuse_errors(preview)
        upgraded = [f"{change.name} {before} -> {after}" for before, after, change in guards.upgrades(preview)]
        if upgraded:
            progress.step(f"Kubernetes, one after the other: {', '.join(upgraded)}")
        for cycle in guards.cycles(preview):
            progress.step(f"OKE cycles nodes, one after the other: {cycle}")
        plan_file = plan_file if _can_be_bound(pulumi, preview, progress) else None
        for resource in guards.unjudged(preview, allowed=allow_replace):
            progress.step(f"not judged: {resource}")
        event_log = Path(folder) / "events.jsonl"
        status = pulumi.up(yes=yes, skip_preview=yes, one_at_a_time=bool(upgraded), plan=plan_file, event_log=event_log)
        if status:
            _tell_failures(event_log, progress)
            recover_unanswered(pulumi, event_log, progress, client)
        return status


def _tell_failures(event_log: Path, progress: Progress) -> None:
    """Tell errors of a bound update apart: the engine takes what it did not come to for a violation of the plan."""
    failures = failures_of_events(event_log.read_text() if event_log.is_file() else "")
    if failures.failed and failures.not_begun:
        progress.step(
            f"what failed: {', '.join(failures.failed)}. Not begun for it, as `expected resource operations for ...` "
            f"means, and left to the next update: {', '.join(failures.not_begun)}"
        )


def _judge(preview: Preview, *, allow_replace: bool) -> None:
    guards.refuse_losses(preview, allowed=allow_replace)
    guards.refuse_skipped_versions(preview)
    guards.refuse_failing_cycles(preview)


def _preview_rest(pulumi: PulumiCli, plan_file: Path | None, progress: Progress) -> Preview:
    """Preview what is left of an update after what was done to the stack before it."""
    progress.step("previewing what is left of the update")
    return pulumi.preview(plan_file)


def _refuse_errors(preview: Preview) -> None:
    if preview.errors:
        raise KitError("The preview failed:\n" + "\n".join(preview.errors))


def _can_be_bound(pulumi: PulumiCli, preview: Preview, progress: Progress) -> bool:
    """Tell whether the engine can hold the update to the preview that was judged; if not, say why.

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
    """Tell what was changed by hand, and read it into the stack's state, so that the update takes it back.

    Raises:
        KitError: the state can't be changed.
    """
    drifts = drift.look(pulumi, progress)
    _tell(drifts, progress)
    urns = drift.to_read(drifts)
    if urns and not pulumi.refresh and pulumi.read(urns):
        raise KitError("What was changed by hand can't be read into the stack's state.", "`pulumi refresh` says why.")
    return drifts


def _tell(drifts: Sequence[Drift], progress: Progress) -> None:
    for item in drifts:
        progress.step(f"changed by hand: {item}")


def unprotect(pulumi: PulumiCli, preview: Preview, progress: Progress) -> list[str]:
    """Remove the protection of what would go away; return what was protected. The engine's error names the first such
    resource only, as far as it got.

    Raises:
        KitError: the state can't be changed.
    """
    going = {change.urn for change in guards.losses(preview)}
    if not going and not preview.errors:
        return []
    messages = "\n".join(preview.errors)
    chosen = [urn for urn in protected_urns(pulumi) if urn in going or urn in messages]
    for urn in chosen:
        progress.detail(f"no longer protected: {urn.rsplit('::', 1)[-1]}")
    if pulumi.unprotect(chosen):
        raise KitError("The protection can't be taken away.", "`pulumi state unprotect` said why.")
    return chosen


def destroy(pulumi: PulumiCli, progress: Progress, *, yes: bool, unprotect: bool, client: ClientOf = no_client) -> int:
    """Destroy a stack, with what a killed engine had begun; return the CLI's exit code.

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
