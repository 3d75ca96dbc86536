"""Read and Invoke: what is there."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from llmd_oke.rehearsal.kubernetes_plugin.checkpoints import Checkpoint, to_object
from llmd_oke.rehearsal.kubernetes_plugin.errors import ApiError, NoMatch
from llmd_oke.rehearsal.kubernetes_plugin.inputs import normalized
from llmd_oke.rehearsal.kubernetes_plugin.kinds import Kind
from llmd_oke.rehearsal.kubernetes_plugin.objects import split_id, without_read_only_metadata
from llmd_oke.rehearsal.kubernetes_plugin.ownership import manager_name
from llmd_oke.rehearsal.kubernetes_plugin.sessions import Session
from llmd_oke.rehearsal.kubernetes_plugin.trees import mark_secrets, prune
from llmd_oke.rehearsal.kubernetes_plugin.waits import NotReady
from llmd_oke.rehearsal.plugin_protocol.errors import InitFailed, Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, Tree, dig

DECODE_YAML: Final = "kubernetes:yaml:decode"

_CLUSTERS_OWN_ANNOTATIONS: Final = frozenset(
    {"deployment.kubernetes.io/revision", "kubectl.kubernetes.io/last-applied-configuration"}
)


@dataclass(frozen=True)
class Found:
    """A live object: the state to record, and the inputs that would make it."""

    id: str
    state: dict[str, Tree]
    inputs: dict[str, Tree]


def read(session: Session, kind: Kind, id_: str, state: dict[str, Tree], inputs: dict[str, Tree]) -> Found | None:
    """The live object, or None where there is none.

    As inputs only those fields are told that the program had; all of them where no program is known (get, import).
    """
    if session.link is None and "deleteUnreachable" in session.settings.flags:
        return None
    cluster = session.to_read().cluster
    namespace, name = split_id(id_)
    try:
        live = cluster.get(kind, namespace, name)
    except NoMatch:
        return None
    except ApiError as error:
        if error.not_found:
            return None
        raise Refusal(str(error)) from None
    recorded = Checkpoint.parse(state)
    asked = normalized(to_object(inputs), session.schemas)
    now = prune(live, asked) if asked else _as_inputs(live)
    version = recorded.initial_api_version or live["apiVersion"]
    manager = manager_name(recorded.inputs, recorded.manager)
    checkpoint = Checkpoint(now, live, version, manager)
    found = Found(id_, checkpoint.tree(inputs), mark_secrets(now, inputs))
    return _ready(session, found, live, checkpoint, inputs) if asked else found


def _ready(session: Session, found: Found, live: JsonObject, checkpoint: Checkpoint, inputs: dict[str, Tree]) -> Found:
    try:
        session.waiter().check(live)
    except NotReady as error:
        state = replace(checkpoint, live=error.live).tree(inputs)
        raise InitFailed(found.id, state, [str(error), *error.reasons], found.inputs) from None
    return found


def _as_inputs(live: JsonObject) -> JsonObject:
    obj = without_read_only_metadata({key: value for key, value in live.items() if key != "status"})
    annotations: dict[str, Any] | None = dig(obj, "metadata", "annotations")
    if annotations:
        kept = {key: value for key, value in annotations.items() if key not in _CLUSTERS_OWN_ANNOTATIONS}
        metadata = {key: value for key, value in obj["metadata"].items() if key != "annotations"}
        obj["metadata"] = {**metadata, "annotations": kept} if kept else metadata
    return obj


def invoke(token: str, arguments: dict[str, Tree]) -> dict[str, Tree]:
    """Functions; there is one, which reads YAML."""
    if token != DECODE_YAML:
        raise Refusal(f"{token} is not in this rehearsal; its stand-in Kubernetes plug-in has {DECODE_YAML}")
    documents = yaml.safe_load_all(str(arguments.get("text") or ""))
    objects = [obj for document in documents if document for obj in _members(document)]
    default = arguments.get("defaultNamespace")
    return {"result": [_in_namespace(obj, default) if default else obj for obj in objects]}


def _members(document: JsonObject) -> Iterator[JsonObject]:
    """A list's items, and theirs; anything else itself."""
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _members(item)
    else:
        yield document


def _in_namespace(obj: JsonObject, namespace: Tree) -> JsonObject:
    return {**obj, "metadata": {"namespace": namespace, **(obj.get("metadata") or {})}}
