"""Check and Diff: what a program asks for, and what that changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from llmd_oke.rehearsal.kubernetes_plugin.checkpoints import Checkpoint, to_object
from llmd_oke.rehearsal.kubernetes_plugin.conditions import Scene, job
from llmd_oke.rehearsal.kubernetes_plugin.differences import (
    Difference,
    differences,
    replacing_fields,
    without_ignored,
)
from llmd_oke.rehearsal.kubernetes_plugin.errors import ApiError, NoMatch, Unreachable
from llmd_oke.rehearsal.kubernetes_plugin.inputs import Naming, adopt_name, give_name, normalized
from llmd_oke.rehearsal.kubernetes_plugin.kinds import Kind
from llmd_oke.rehearsal.kubernetes_plugin.objects import (
    AUTONAMED,
    REPLACE_UNREADY,
    is_annotated_true,
    is_named,
    name_of,
    namespace_of,
    with_metadata,
)
from llmd_oke.rehearsal.kubernetes_plugin.sessions import Session
from llmd_oke.rehearsal.kubernetes_plugin.trees import mark_secrets, prune
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, Tree


@dataclass(frozen=True)
class Diff:
    """What an update would do. `replaces` are the names of the changes that only a new object can make."""

    found: Sequence[Difference]
    replaces: Sequence[str]
    delete_first: bool

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.found or self.replaces)


def check(
    session: Session, kind: Kind, olds: dict[str, Tree], news: dict[str, Tree], naming: Naming
) -> dict[str, Tree]:
    """The inputs to record: normalised, named, and in the provider's namespace if in none."""
    obj = normalized(to_object(news), session.schemas)
    obj = adopt_name(obj, to_object(olds)) if olds else give_name(obj, naming)
    if not namespace_of(obj) and session.is_namespaced(kind):
        obj = with_metadata(obj, namespace=session.namespace)
    return mark_secrets(obj, news)


def diff(session: Session, kind: Kind, state: dict[str, Tree], news: dict[str, Tree], ignored: Sequence[str]) -> Diff:
    """Compares what a program asks for with the recorded live state, as far as the program had a say in it."""
    recorded = Checkpoint.parse(state)
    new = normalized(to_object(news), session.schemas)
    old = prune(recorded.live, normalized(recorded.inputs, session.schemas))
    old, new = _in_namespace(session, kind, old), _in_namespace(session, kind, new)
    if name_of(new):
        old = with_metadata(old, name=name_of(recorded.live))
    fields = replacing_fields(kind, new, session.settings.flags)
    found = without_ignored(differences(old, new, fields), ignored)
    replaces = [difference.name for difference in found if difference.replaces]
    if is_annotated_true(new, REPLACE_UNREADY) and kind.id == "batch/v1/Job" and _is_unready(session, kind, recorded):
        replaces.append(f'.metadata.annotations["{REPLACE_UNREADY}"]')
    return Diff(found, replaces, delete_first=bool(replaces) and _keeps_name(new, recorded.live))


def _in_namespace(session: Session, kind: Kind, obj: JsonObject) -> JsonObject:
    namespaced = session.is_namespaced(kind)
    return with_metadata(obj, namespace=(namespace_of(obj) or "default") if namespaced else None)


def _keeps_name(new: JsonObject, live: JsonObject) -> bool:
    """Whether the old object stands in the way of the new one."""
    own_name = is_named(new) and not is_annotated_true(new, AUTONAMED)
    return own_name and name_of(new) == name_of(live) and namespace_of(new) == namespace_of(live)


def _is_unready(session: Session, kind: Kind, recorded: Checkpoint) -> bool:
    if session.link is None:
        return False
    try:
        live = session.link.cluster.get(kind, namespace_of(recorded.live), name_of(recorded.live))
    except (ApiError, NoMatch, Unreachable):
        return False
    return not job(Scene(live)).ready
