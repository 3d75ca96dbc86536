"""Create, Update and Delete: changing objects, or, at preview, having the API server say what would come of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from llmd_oke.rehearsal.kubernetes_plugin.checkpoints import Checkpoint, to_object
from llmd_oke.rehearsal.kubernetes_plugin.client import Cluster
from llmd_oke.rehearsal.kubernetes_plugin.errors import ApiError, ApplyConflict, NoMatch
from llmd_oke.rehearsal.kubernetes_plugin.inputs import normalized
from llmd_oke.rehearsal.kubernetes_plugin.kinds import Kind
from llmd_oke.rehearsal.kubernetes_plugin.objects import (
    DELETION_PROPAGATION,
    PATCH_FORCE,
    annotation,
    id_of,
    is_annotated_true,
    name_of,
    namespace_of,
    split_id,
    with_metadata,
)
from llmd_oke.rehearsal.kubernetes_plugin.ownership import leave_to_others, manager_name, must_force, taken_over
from llmd_oke.rehearsal.kubernetes_plugin.sessions import Session
from llmd_oke.rehearsal.kubernetes_plugin.waits import NotReady
from llmd_oke.rehearsal.plugin_protocol.errors import InitFailed, Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, Tree, dig, has_unknowns

MISSING_KIND_RETRY_S: Final = 0.25

_EXISTS_HELP: Final = """

The resource already exists in the cluster. This can happen when:

  - Renaming a Pulumi resource: use an alias to preserve the identity,
    or use deleteBeforeReplace if the resource needs replacement.
  - Managing an existing resource: use a Patch resource (e.g. NamespacePatch)
    to manage specific fields without owning the resource lifecycle.
  - Adopting a resource into Pulumi: use `pulumi import`. Note that
    protected resources (e.g. kube-system) cannot be deleted on destroy.
  - Intentional upsert: set upsertExistingObjects on the provider to allow
    server-side apply to update existing objects on create."""


@dataclass(frozen=True)
class Order:
    """A write that the engine asks for."""

    urn: str
    kind: Kind
    inputs: dict[str, Tree]
    preview: bool
    timeout_s: float


@dataclass(frozen=True)
class Written:
    """What the engine records. At preview the id is empty, and the state may be no more than the inputs."""

    id: str
    state: dict[str, Tree]


class _Unforeseeable(Exception):
    """Only the real write can tell what comes of it."""


def create(session: Session, order: Order) -> Written:
    """Makes an object and waits until it is ready."""
    obj = to_object(order.inputs)
    unforeseeable = order.preview and (has_unknowns(obj) or not session.serves(order.kind))
    if unforeseeable:
        return Written("", order.inputs)
    manager = manager_name(obj, "")
    record = partial(_record, obj, order, obj.get("apiVersion", ""), manager)
    try:
        made = _make(session, order, _placed(session, order.kind, obj), manager)
    except _Unforeseeable:
        return Written("", order.inputs)
    if order.preview:
        return Written("", record({key: value for key, value in made.items() if key != "status"}))
    try:
        live = session.waiter().until_ready(made, obj, None, order.timeout_s)
    except NotReady as error:
        text = (
            f'resource "{order.urn}" was successfully created, but the Kubernetes API server reported that it failed '
            f"to fully initialize or become live: {error}"
        )
        raise InitFailed(id_of(error.live), record(error.live), [text, *error.reasons]) from None
    return Written(id_of(live), record(live))


def _make(session: Session, order: Order, obj: JsonObject, manager: str) -> JsonObject:
    cluster = session.to_write().cluster
    try:
        return _patiently(partial(_make_once, session, cluster, obj, manager, order), session, order)
    except NoMatch as error:
        if order.preview:
            raise _Unforeseeable from None
        raise Refusal(
            f'creation of resource "{order.urn}" with kind {order.kind.id} failed because the Kubernetes API server '
            "reported that the apiVersion for this resource does not exist. "
            f"Verify that any required CRDs have been created: {error}"
        ) from None
    except (ApiError, ApplyConflict) as error:
        refusal = error if isinstance(error, ApiError) else None
        if order.preview and refusal and (refusal.exists or refusal.namespace_not_found or refusal.forbidden):
            raise _Unforeseeable from None
        advice = _EXISTS_HELP if refusal and refusal.exists else ""
        raise Refusal(
            f'resource "{order.urn}" was not successfully created by the Kubernetes API server: {error}{advice}'
        ) from None


def _make_once(session: Session, cluster: Cluster, obj: JsonObject, manager: str, order: Order) -> JsonObject:
    if "upsertExistingObjects" not in session.settings.flags:
        return cluster.create(obj, dry_run=order.preview)
    force = order.preview or _asks_force(session, obj)
    return _applied(cluster, obj, manager=manager, force=force, preview=order.preview)


def _patiently(make: Callable[[], JsonObject], session: Session, order: Order) -> JsonObject:
    """Tries again for about a minute while the kind or the namespace isn't there; at preview, not at all."""
    ends_at = time.monotonic() + (0 if order.preview else session.limits.missing_kind_s)
    while True:
        try:
            return make()
        except (NoMatch, ApiError) as error:
            missing = isinstance(error, NoMatch) or error.not_found
            if not missing or time.monotonic() >= ends_at or session.cancelled.is_set():
                raise
        time.sleep(MISSING_KIND_RETRY_S)


def update(session: Session, order: Order, state: dict[str, Tree], ignored: Sequence[str]) -> Written:
    """Changes an object and waits until it is ready; also one that was left unready and is unchanged."""
    if not order.preview:
        session.to_write()
    obj = normalized(to_object(order.inputs), session.schemas)
    if order.preview and (has_unknowns(obj) or not session.serves(order.kind)):
        return Written("", order.inputs)
    recorded = Checkpoint.parse(state)
    manager = manager_name(obj, recorded.manager)
    record = partial(_record, obj, order, recorded.initial_api_version, manager)
    try:
        live = _change(session, order, _placed(session, order.kind, obj), recorded, manager, ignored)
    except NoMatch as error:
        raise Refusal(
            f'update of resource "{order.urn}" failed because the Kubernetes API server reported that the apiVersion '
            f"for this resource does not exist. Verify that any required CRDs have been created: {error}"
        ) from None
    except (ApiError, ApplyConflict, NotReady) as error:
        if order.preview and isinstance(error, ApiError) and error.forbidden:
            return Written("", order.inputs)
        live = _live_after(session, order, recorded, error)
        text = (
            f'the Kubernetes API server reported that "{id_of(live)}" failed to fully initialize '
            f"or become live: {error}"
        )
        reasons = error.reasons if isinstance(error, NotReady) else ()
        raise InitFailed(id_of(live), record(live), [text, *reasons]) from None
    return Written(id_of(live), record(live))


def _change(
    session: Session, order: Order, obj: JsonObject, recorded: Checkpoint, manager: str, ignored: Sequence[str]
) -> JsonObject:
    cluster = session.to_write().cluster
    before = cluster.get(order.kind, namespace_of(obj), name_of(recorded.live))
    if order.kind.kind == "CustomResourceDefinition":
        changed = cluster.on_latest(before, partial(_replaced, cluster, obj, manager, preview=order.preview))
    else:
        obj = leave_to_others(obj, before, manager, ignored)
        changed = _apply_update(session, cluster, obj, before, manager, order.preview)
    if order.preview:
        return changed
    return session.waiter().until_ready(changed, obj, before, order.timeout_s)


def _apply_update(
    session: Session, cluster: Cluster, obj: JsonObject, before: JsonObject, manager: str, preview: bool
) -> JsonObject:
    if not preview:
        before = cluster.on_latest(before, partial(_take_over, cluster, manager))
    force = _asks_force(session, obj) or must_force(before, preview=preview)
    return _applied(cluster, obj, manager=manager, force=force, preview=preview)


def _replaced(cluster: Cluster, obj: JsonObject, manager: str, live: JsonObject, *, preview: bool) -> JsonObject:
    whole = with_metadata(obj, resourceVersion=dig(live, "metadata", "resourceVersion"))
    return cluster.replace(whole, manager=manager, dry_run=preview)


def _take_over(cluster: Cluster, manager: str, live: JsonObject) -> JsonObject:
    fields = taken_over(live, manager)
    if fields is None:
        return live
    version = dig(live, "metadata", "resourceVersion")
    replace_fields = {"op": "replace", "path": "/metadata/managedFields", "value": fields}
    same_version = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
    return cluster.patch(live, [replace_fields, same_version])


def _applied(cluster: Cluster, obj: JsonObject, *, manager: str, force: bool, preview: bool) -> JsonObject:
    try:
        return cluster.apply(obj, manager=manager, force=force, dry_run=preview)
    except ApiError as error:
        if error.conflict:
            raise ApplyConflict(manager, error) from None
        raise


def _live_after(session: Session, order: Order, recorded: Checkpoint, failure: Exception) -> JsonObject:
    """The object after an update that failed."""
    try:
        cluster = session.to_write().cluster
        return cluster.get(order.kind, namespace_of(recorded.live), name_of(recorded.live))
    except ApiError as error:
        raise Refusal(
            f'update of resource "{order.urn}" failed: {failure}\nunable to get cluster state: {error}'
        ) from None


def delete(session: Session, kind: Kind, id_: str, state: dict[str, Tree], timeout_s: float) -> None:
    """Deletes an object and waits until it is gone; one that is gone already is no error."""
    if session.link is None and "deleteUnreachable" in session.settings.flags:
        return
    cluster = session.to_delete().cluster
    recorded = Checkpoint.parse(state)
    namespace, name = split_id(id_)
    try:
        live = cluster.get(kind, namespace, name)
        cluster.delete(kind, namespace, name, _propagation(recorded.inputs))
        session.waiter().until_gone(live, recorded.inputs, timeout_s)
    except NoMatch:
        return
    except ApiError as error:
        if not error.not_found:
            raise Refusal(str(error)) from None
    except NotReady as error:
        left = replace(recorded, live=error.live)
        raise InitFailed(id_, left.tree(state), [str(error), *error.reasons]) from None


def _record(
    inputs: JsonObject, order: Order, initial_api_version: str, manager: str, live: JsonObject
) -> dict[str, Tree]:
    return Checkpoint(inputs, live, initial_api_version, manager).tree(order.inputs)


def _placed(session: Session, kind: Kind, obj: JsonObject) -> JsonObject:
    """The object without a namespace where its kind knows none."""
    return obj if session.is_namespaced(kind) else with_metadata(obj, namespace=None)


def _asks_force(session: Session, obj: JsonObject) -> bool:
    return is_annotated_true(obj, PATCH_FORCE) or "enablePatchForce" in session.settings.flags


def _propagation(inputs: JsonObject) -> str:
    asked = annotation(inputs, DELETION_PROPAGATION).lower()
    return {"orphan": "Orphan", "background": "Background"}.get(asked, "Foreground")
