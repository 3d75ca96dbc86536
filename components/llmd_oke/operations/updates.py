"""Updates of a stack with the steps before them: recovery, drift, checks of the preview, early deletion of servers."""

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
"""A resource of a stack's state, as `pulumi stack export` returns it."""


ADD_ON = "oci:ContainerEngine/addon:Addon"


def with_refresh(pulumi: PulumiCli, plan: Plan) -> PulumiCli:
    """Return the CLI, set to refresh first if the state may differ from the actual resources: the stack has the cluster
    autoscaler, or had it until this update (a pool that gets a fixed size again may seem unchanged), or OCI has deleted
    a resource whose creation failed.

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
    """Tell whether a resource of the state may have been deleted after a failed operation.

    A failed acceptance Job has deleted its bindings. OCI, or its provider, deletes resources whose creation failed; the
    state has their IDs all the same, so that each update would fail because the resource doesn't exist. The recorded
    error shows whether a creation failed, or an update that didn't find the resource; if it shows neither, the recorded
    lifecycle state decides. A resource whose update failed still exists: the next update continues, and a refresh would
    lose the failed change.
    """
    errors = "\n".join(resource.get("initErrors") or ())
    if errors and resource["type"] == "kubernetes:batch/v1:Job":
        return resource["inputs"]["metadata"].get("namespace") == ACCEPTANCE_NAMESPACE
    if not errors or not str(resource["type"]).startswith("oci:"):
        return False
    state: Mapping[str, Any] = resource.get("outputs") or {}
    return bool(_GONE.search(errors)) or state.get("state") not in oci_resources().created


_GONE = re.compile(r"^creating urn:|\b404-NotAuthorizedOrNotFound\b", re.MULTILINE)
"""Errors of a resource that may not exist: `creating URN: …` of Pulumi's Terraform bridge, which writes `updating URN:
…` in later updates (pulumi-terraform-bridge, pkg/tfbridge/provider.go), or status and code 404 of OCI's provider."""


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
    """Update a stack to its stack file; return the CLI's exit code.

    Args:
        pulumi: the CLI and the stack.
        plan: the stack's plan.
        progress: receiver of messages.
        confirm: asks the user before servers are deleted early.
        yes: don't ask.
        allow_replace: allow the loss of guarded and protected resources.
        client: makes a client of OCI for the recovery after a killed engine.
        bound: let the engine refuse steps that aren't part of the checked preview, where previews can express them.

    Raises:
        KitError: the preview fails, guarded resources would be lost, OKE would refuse a change, or a pending creation
            can't be matched.
    """
    recover(pulumi, progress, client)
    by_hand = _read_drift(pulumi, progress)
    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # mode 0700
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
    """Report which resources failed in an update with a saved plan, and which it didn't begin: the engine also reports
    the latter as errors, as violations of the plan.
    """
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
    """Preview the update again after the stack was changed in preparation."""
    progress.step("previewing what is left of the update")
    return pulumi.preview(plan_file)


def _refuse_errors(preview: Preview) -> None:
    if preview.errors:
        raise KitError("The preview failed:\n" + "\n".join(preview.errors))


def _can_be_bound(pulumi: PulumiCli, preview: Preview, progress: Progress) -> bool:
    """Return True if the update can be restricted to the checked preview; otherwise report the reasons as progress.

    Not if inputs are known only during the update: Pulumi 3.250 refuses creations whose dependencies become known with
    such values (`violates plan: dependencies for nodeMetadata changed`). Nor if the update begins with a refresh.
    """
    open_ended = [change for change in preview.effective if change.unknown]
    if not open_ended and not pulumi.refresh:
        return True
    reasons = [f"{len(open_ended)} resources have inputs that only the update will know"] if open_ended else []
    reasons += ["the update reads first what others have changed"] if pulumi.refresh else []
    progress.step(f"the update is not bound to this preview: {'; '.join(reasons)}")
    return False


def _read_drift(pulumi: PulumiCli, progress: Progress) -> list[Drift]:
    """Report drift as progress, and refresh the changed resources in the state, so that the update reverts the changes;
    return the drift.

    Raises:
        KitError: the resources can't be refreshed.
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
    """Remove the protection of the resources that the preview would delete or replace; return their URNs. Protected
    resources that only an error of the preview names are included, since the engine stops at the first.

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
    """Destroy a stack, after the recovery of operations that a killed engine had begun; return the CLI's exit code.

    Raises:
        KitError: resources are protected and `unprotect` is false, or a pending creation can't be matched.
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
    """Return the URNs of the protected resources of a stack's state."""
    return [str(resource["urn"]) for resource in pulumi.resources() if resource.get("protect")]
