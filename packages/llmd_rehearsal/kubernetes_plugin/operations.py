"""Check, Diff, Create, Update, Delete, Read and Invoke of Kubernetes objects, with server-side apply.

In a preview, the API server predicts the result of a write (dry run).
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from llmd_oke.values import parse_yaml_documents

from llmd_rehearsal import running_time
from llmd_rehearsal.kubernetes_plugin.client import (
    FIRST_WRITER,
    ApiError,
    ApplyConflict,
    Cluster,
    NoMatch,
    Unreachable,
)
from llmd_rehearsal.kubernetes_plugin.differences import (
    ObjectPropertyChange,
    differences,
    replacing_fields,
    without_ignored,
)
from llmd_rehearsal.kubernetes_plugin.inputs import adopt_name, give_name, normalized
from llmd_rehearsal.kubernetes_plugin.objects import (
    AUTONAMED,
    DELETION_PROPAGATION,
    FIELD_MANAGER,
    PATCH_FORCE,
    REPLACE_UNREADY,
    Checkpoint,
    ObjectKind,
    annotation,
    id_of,
    is_annotated_true,
    is_named,
    mark_secrets,
    name_of,
    namespace_of,
    prune,
    split_id,
    to_object,
    with_metadata,
    without_read_only_metadata,
)
from llmd_rehearsal.kubernetes_plugin.readiness import ReadinessEvidence, job
from llmd_rehearsal.kubernetes_plugin.sessions import KubernetesSession
from llmd_rehearsal.kubernetes_plugin.waits import ObjectNotReady
from llmd_rehearsal.plugin_values import (
    InitFailed,
    JsonObject,
    Naming,
    OperationRefusal,
    Tree,
    dig,
    dig_list,
    dig_map,
    has_unknowns,
)

DECODE_YAML: Final = "kubernetes:yaml:decode"
MISSING_KIND_RETRY_S: Final = 0.25
_CLUSTERS_OWN_ANNOTATIONS: Final = frozenset(
    {"deployment.kubernetes.io/revision", "kubectl.kubernetes.io/last-applied-configuration"}
)
# Field managers (prefix of the name, and operation) whose fields an update takes over: those of this plug-in's create
# and of kubectl. From pulumi-kubernetes 4.30.0, provider/pkg/await/await.go.
_TAKEN_OVER: Final = (
    ("kubectl", "Apply"),
    ("kubectl", "Update"),
    ("before-first-apply", "Update"),
    ("pulumi-kubernetes", "Update"),
    ("pulumi-resource-kubernetes", "Update"),
)
_FIRST_WRITERS: Final = frozenset({FIRST_WRITER, "pulumi-resource-kubernetes"})
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


def check(
    session: KubernetesSession, kind: ObjectKind, olds: dict[str, Tree], news: dict[str, Tree], naming: Naming
) -> dict[str, Tree]:
    """Return an object's inputs as the engine is to record them: normalized, named, and by default in the provider's
    namespace.
    """
    obj = normalized(to_object(news), session.schemas)
    obj = adopt_name(obj, to_object(olds)) if olds else give_name(obj, naming)
    if not namespace_of(obj) and session.is_namespaced(kind):
        obj = with_metadata(obj, namespace=session.namespace)
    return mark_secrets(obj, news)


@dataclass(frozen=True)
class ObjectDiff:
    """Changes that an update would make to an object; `replaces` are the paths of changes that require a new object."""

    differences: Sequence[ObjectPropertyChange]
    replaces: Sequence[str]
    delete_first: bool


def diff(
    session: KubernetesSession, kind: ObjectKind, state: dict[str, Tree], news: dict[str, Tree], ignored: Sequence[str]
) -> ObjectDiff:
    """Return the differences between an object's new inputs and its recorded live state, in fields that the program
    sets now or set before.
    """
    recorded = Checkpoint.parse(state)
    new = normalized(to_object(news), session.schemas)
    old = prune(recorded.live, normalized(recorded.inputs, session.schemas))
    old, new = _in_namespace(session, kind, old), _in_namespace(session, kind, new)
    if name_of(new):
        old = with_metadata(old, name=name_of(recorded.live))
    fields = replacing_fields(kind, new, session.settings.flags)
    changes = without_ignored(differences(old, new, fields), ignored)
    replaces = [difference.name for difference in changes if difference.replaces]
    if is_annotated_true(new, REPLACE_UNREADY) and kind.id == "batch/v1/Job" and _is_unready(session, kind, recorded):
        replaces.append(f'.metadata.annotations["{REPLACE_UNREADY}"]')
    given_name = is_named(new) and not is_annotated_true(new, AUTONAMED)
    same_name = given_name and id_of(new) == id_of(recorded.live)  # the new name is taken
    return ObjectDiff(changes, replaces, delete_first=bool(replaces) and same_name)


def _in_namespace(session: KubernetesSession, kind: ObjectKind, obj: JsonObject) -> JsonObject:
    namespaced = session.is_namespaced(kind)
    return with_metadata(obj, namespace=(namespace_of(obj) or "default") if namespaced else None)


def _is_unready(session: KubernetesSession, kind: ObjectKind, recorded: Checkpoint) -> bool:
    if session.connection is None:
        return False
    try:
        live = session.connection.cluster.get(kind, namespace_of(recorded.live), name_of(recorded.live))
    except (ApiError, NoMatch, Unreachable):
        return False
    return not job(ReadinessEvidence(live)).ready


@dataclass(frozen=True)
class WriteRequest:
    """Request of the engine to create or update an object."""

    urn: str
    kind: ObjectKind
    inputs: dict[str, Tree]
    preview: bool
    timeout_s: float


@dataclass(frozen=True)
class WriteResult:
    """Id and state of a written object for the engine to record. In a preview the id is empty; the state may be the
    inputs alone.
    """

    id: str
    state: dict[str, Tree]


class _UnpredictableError(Exception):
    """The result of a write can't be predicted by a dry run."""


def create(session: KubernetesSession, request: WriteRequest) -> WriteResult:
    """Create a Kubernetes object, wait until it is ready, and return its id and state.

    Raises:
        InitFailed: the object was created and didn't become ready.
    """
    obj = to_object(request.inputs)
    if request.preview and (has_unknowns(obj) or not session.serves(request.kind)):
        return WriteResult("", request.inputs)
    manager = manager_name(obj, "")

    def record(live: JsonObject) -> dict[str, Tree]:
        return Checkpoint(obj, live, obj.get("apiVersion", ""), manager).tree(request.inputs)

    try:
        created = _make(session, request, _placed(session, request.kind, obj), manager)
    except _UnpredictableError:
        return WriteResult("", request.inputs)
    if request.preview:
        return WriteResult("", record({key: value for key, value in created.items() if key != "status"}))
    try:
        live = session.waiter().until_ready(created, obj, None, request.timeout_s)
    except ObjectNotReady as error:
        text = (
            f'resource "{request.urn}" was successfully created, but the Kubernetes API server reported that it failed '
            f"to fully initialize or become live: {error}"
        )
        raise InitFailed(id_of(error.live), record(error.live), [text, *error.reasons]) from None
    return WriteResult(id_of(live), record(live))


def _make(session: KubernetesSession, request: WriteRequest, obj: JsonObject, manager: str) -> JsonObject:
    cluster, preview = session.for_write(), request.preview

    def make() -> JsonObject:
        if "upsertExistingObjects" not in session.settings.flags:
            return cluster.create(obj, dry_run=preview)
        return _apply(cluster, obj, manager=manager, force=preview or _asks_force(session, obj), preview=preview)

    try:
        return _with_retries(make, session, request)
    except NoMatch as error:
        if preview:
            raise _UnpredictableError from None
        raise OperationRefusal(
            f'creation of resource "{request.urn}" with kind {request.kind.id} failed because the Kubernetes API '
            "server reported that the apiVersion for this resource does not exist. "
            f"Verify that any required CRDs have been created: {error}"
        ) from None
    except (ApiError, ApplyConflict) as error:
        refusal = error if isinstance(error, ApiError) else None
        if preview and refusal:
            no_namespace = refusal.not_found and refusal.details_kind == "namespaces"
            if refusal.exists or refusal.forbidden or no_namespace:
                raise _UnpredictableError from None
        advice = _EXISTS_HELP if refusal and refusal.exists else ""
        raise OperationRefusal(
            f'resource "{request.urn}" was not successfully created by the Kubernetes API server: {error}{advice}'
        ) from None


def _with_retries(make: Callable[[], JsonObject], session: KubernetesSession, request: WriteRequest) -> JsonObject:
    """Return the result of `make`; retry for a minute while kind or namespace don't exist, except in a preview."""
    ends_at = running_time.now() + (0 if request.preview else session.limits.missing_kind_s)
    while True:
        try:
            return make()
        except (NoMatch, ApiError) as error:
            missing = isinstance(error, NoMatch) or error.not_found
            if not missing or running_time.now() >= ends_at or session.cancelled.is_set():
                raise
        time.sleep(MISSING_KIND_RETRY_S)


def update(
    session: KubernetesSession, request: WriteRequest, state: dict[str, Tree], ignored: Sequence[str]
) -> WriteResult:
    """Update a Kubernetes object, wait until it is ready, also if it is unchanged, and return its id and state.

    Raises:
        InitFailed: the API server refused the update, or the object didn't become ready.
    """
    if not request.preview:
        session.for_write()
    obj = normalized(to_object(request.inputs), session.schemas)
    if request.preview and (has_unknowns(obj) or not session.serves(request.kind)):
        return WriteResult("", request.inputs)
    recorded = Checkpoint.parse(state)
    manager = manager_name(obj, recorded.manager)

    def record(live: JsonObject) -> dict[str, Tree]:
        return Checkpoint(obj, live, recorded.initial_api_version, manager).tree(request.inputs)

    try:
        live = _change(session, request, _placed(session, request.kind, obj), recorded, manager, ignored)
    except NoMatch as error:
        raise OperationRefusal(
            f'update of resource "{request.urn}" failed because the Kubernetes API server reported that the apiVersion '
            f"for this resource does not exist. Verify that any required CRDs have been created: {error}"
        ) from None
    except (ApiError, ApplyConflict, ObjectNotReady) as error:
        if request.preview and isinstance(error, ApiError) and error.forbidden:
            return WriteResult("", request.inputs)
        live = _live_after(session, request, recorded, error)
        text = (
            f'the Kubernetes API server reported that "{id_of(live)}" failed to fully initialize '
            f"or become live: {error}"
        )
        reasons = error.reasons if isinstance(error, ObjectNotReady) else ()
        raise InitFailed(id_of(live), record(live), [text, *reasons]) from None
    return WriteResult(id_of(live), record(live))


def _change(
    session: KubernetesSession,
    request: WriteRequest,
    obj: JsonObject,
    recorded: Checkpoint,
    manager: str,
    ignored: Sequence[str],
) -> JsonObject:
    cluster, preview = session.for_write(), request.preview
    before = cluster.get(request.kind, namespace_of(obj), name_of(recorded.live))

    def put(live: JsonObject) -> JsonObject:
        whole = with_metadata(obj, resourceVersion=dig(live, "metadata", "resourceVersion"))
        return cluster.replace(whole, manager=manager, dry_run=preview)

    if request.kind.kind == "CustomResourceDefinition":
        changed = cluster.on_latest(before, put)
    else:
        obj = without_foreign_fields(obj, before, manager, ignored)
        current = before if preview else cluster.on_latest(before, partial(_take_over, cluster, manager))
        force = _asks_force(session, obj) or must_force(current, preview=preview)
        changed = _apply(cluster, obj, manager=manager, force=force, preview=preview)
    return changed if preview else session.waiter().until_ready(changed, obj, before, request.timeout_s)


def _take_over(cluster: Cluster, manager: str, live: JsonObject) -> JsonObject:
    fields = take_over_fields(live, manager)
    if fields is None:
        return live
    version = dig(live, "metadata", "resourceVersion")
    replace_fields = {"op": "replace", "path": "/metadata/managedFields", "value": fields}
    same_version = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
    return cluster.patch(live, [replace_fields, same_version])


def _apply(cluster: Cluster, obj: JsonObject, *, manager: str, force: bool, preview: bool) -> JsonObject:
    try:
        return cluster.apply(obj, manager=manager, force=force, dry_run=preview)
    except ApiError as error:
        if error.conflict:
            raise ApplyConflict(manager, error) from None
        raise


def _live_after(
    session: KubernetesSession, request: WriteRequest, recorded: Checkpoint, failure: Exception
) -> JsonObject:
    """Return the live object after a failed update."""
    try:
        return session.for_write().get(request.kind, namespace_of(recorded.live), name_of(recorded.live))
    except ApiError as error:
        raise OperationRefusal(
            f'update of resource "{request.urn}" failed: {failure}\nunable to get cluster state: {error}'
        ) from None


def delete(session: KubernetesSession, kind: ObjectKind, id_: str, state: dict[str, Tree], timeout_s: float) -> None:
    """Delete a Kubernetes object and wait until it is gone; do nothing if the object doesn't exist.

    Raises:
        InitFailed: the object still exists at the time limit.
    """
    if session.skips_unreachable:
        return
    cluster = session.for_delete()
    recorded = Checkpoint.parse(state)
    namespace, name = split_id(id_)
    policies = {"orphan": "Orphan", "background": "Background"}
    propagation = policies.get(annotation(recorded.inputs, DELETION_PROPAGATION).lower(), "Foreground")
    try:
        live = cluster.get(kind, namespace, name)
        cluster.delete(kind, namespace, name, propagation)
        session.waiter().until_gone(live, recorded.inputs, timeout_s)
    except NoMatch:
        return
    except ApiError as error:
        if not error.not_found:
            raise OperationRefusal(str(error)) from None
    except ObjectNotReady as error:
        remnant = replace(recorded, live=error.live)
        raise InitFailed(id_, remnant.tree(state), [str(error), *error.reasons]) from None


def _placed(session: KubernetesSession, kind: ObjectKind, obj: JsonObject) -> JsonObject:
    """Return the object, without a namespace if its kind is cluster-scoped."""
    return obj if session.is_namespaced(kind) else with_metadata(obj, namespace=None)


def _asks_force(session: KubernetesSession, obj: JsonObject) -> bool:
    return is_annotated_true(obj, PATCH_FORCE) or "enablePatchForce" in session.settings.flags


def manager_name(inputs: JsonObject, recorded: str) -> str:
    """Return the field manager's name for a write of an object: from the annotation `pulumi.com/patchFieldManager` in
    the inputs, from the recorded state, or else a new name.
    """
    return annotation(inputs, FIELD_MANAGER) or recorded or f"{FIRST_WRITER}-{secrets.token_hex(4)}"


def must_force(live: JsonObject, *, preview: bool) -> bool:
    """Tell whether a server-side apply must override other field managers although the program doesn't ask for that: if
    the object has no managed fields, or in a preview if its first writer's fields weren't taken over yet.
    """
    entries = _managed_fields(live)
    created = any(entry["manager"] in _FIRST_WRITERS and entry["operation"] == "Update" for entry in entries)
    return not entries or (preview and created)


def take_over_fields(live: JsonObject, manager: str) -> list[JsonObject] | None:
    """Return an object's managed fields after `manager` took over the fields of earlier field managers (`_TAKEN_OVER`,
    such as kubectl); None if those own no fields.
    """
    entries = _managed_fields(live)
    recorded = next((entry for entry in entries if entry["manager"] == manager and entry["operation"] == "Apply"), None)
    of_objects = [entry for entry in entries if entry is not recorded and not entry.get("subresource")]
    taken = [
        entry
        for entry in of_objects
        if any(entry["manager"].startswith(prefix) and entry["operation"] == verb for prefix, verb in _TAKEN_OVER)
    ]
    if not taken:
        return None
    others = [entry for entry in entries if entry is not recorded and entry not in taken]
    merged = recorded or {**taken[0], "manager": manager, "operation": "Apply"}
    for entry in taken:
        merged = {**merged, "fieldsV1": _union(merged.get("fieldsV1") or {}, entry.get("fieldsV1") or {})}
    return [*others, merged]


def without_foreign_fields(obj: JsonObject, live: JsonObject, manager: str, ignored: Sequence[str]) -> JsonObject:
    """Return the object without ignored fields that another manager owns, and with live values of other ignored fields.
    Ignored paths that pass through lists have no effect.
    """
    for path in ignored:
        keys = path.split(".")
        value = dig(live, *keys)
        fields = [f"f:{key}" for key in keys]
        owners = {
            entry["manager"] for entry in _managed_fields(live) if dig(entry.get("fieldsV1"), *fields) is not None
        }
        if owners and manager not in owners:
            obj = _with(obj, keys, None)
        elif value is not None:
            obj = _with(obj, keys, value)
    return obj


def _managed_fields(live: JsonObject) -> list[JsonObject]:
    return dig_list(live, "metadata", "managedFields")


def _with(obj: JsonObject, keys: Sequence[str], value: object) -> JsonObject:
    """Return a copy of the object with the value at the path set; None removes the field."""
    key, *rest = keys
    inside = _with(obj.get(key) or {}, rest, value) if rest else value
    return {**{name: item for name, item in obj.items() if name != key}, **({} if inside is None else {key: inside})}


def _union(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    shared = {key: _union(one[key], other[key]) for key in one.keys() & other.keys()}
    return {**one, **other, **shared}


def read(
    session: KubernetesSession, kind: ObjectKind, id_: str, state: dict[str, Tree], inputs: dict[str, Tree]
) -> tuple[dict[str, Tree], dict[str, Tree]] | None:
    """Return state and inputs of an object as it is at present; None if the object doesn't exist. The inputs are
    limited to the fields of the recorded inputs; without any (in `get` and `import`), all fields are inputs.

    Raises:
        InitFailed: the object exists and isn't ready.
    """
    if session.skips_unreachable:
        return None
    cluster = session.for_read()
    namespace, name = split_id(id_)
    try:
        live = cluster.get(kind, namespace, name)
    except NoMatch:
        return None
    except ApiError as error:
        if error.not_found:
            return None
        raise OperationRefusal(str(error)) from None
    recorded = Checkpoint.parse(state)
    recorded_inputs = normalized(to_object(inputs), session.schemas)
    if recorded_inputs:
        now = prune(live, recorded_inputs)
    else:
        now = without_read_only_metadata({key: value for key, value in live.items() if key != "status"})
        if annotations := dig_map(now, "metadata", "annotations"):
            kept = {key: value for key, value in annotations.items() if key not in _CLUSTERS_OWN_ANNOTATIONS}
            now = with_metadata(now, annotations=kept or None)
    version = recorded.initial_api_version or live["apiVersion"]
    checkpoint = Checkpoint(now, live, version, manager_name(recorded.inputs, recorded.manager))
    inputs_now = mark_secrets(now, inputs)
    if recorded_inputs:
        try:
            session.waiter().check(live)
        except ObjectNotReady as error:
            unready = replace(checkpoint, live=error.live).tree(inputs)
            raise InitFailed(id_, unready, [str(error), *error.reasons], inputs_now) from None
    return checkpoint.tree(inputs), inputs_now


def invoke(token: str, arguments: dict[str, Tree]) -> dict[str, Tree]:
    """Return the result of a call to `kubernetes:yaml:decode`, the only function that the stand-in plug-in has."""
    if token != DECODE_YAML:
        raise OperationRefusal(f"{token} is not in this rehearsal; its stand-in Kubernetes plug-in has {DECODE_YAML}")
    documents = parse_yaml_documents(str(arguments.get("text") or ""))
    objects = [obj for document in documents for obj in _members(document)]
    if namespace := arguments.get("defaultNamespace"):
        objects = [{**obj, "metadata": {"namespace": namespace, **(obj.get("metadata") or {})}} for obj in objects]
    return {"result": [*objects]}


def _members(document: JsonObject) -> Iterator[JsonObject]:
    """Yield the items of a Kubernetes List, recursively; yield any other object itself."""
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _members(item)
    else:
        yield document
