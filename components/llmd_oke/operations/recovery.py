"""Recovery after a killed engine: resources whose creation had begun are looked up in OCI by name and tag, and added to
the stack's state.

An engine records in the state that it is about to create a resource (a pending operation), and the resource's ID once
the resource exists. If the engine is killed in between, the resource may exist without being in the state: to create it
again would fail, or would launch a second set of nodes. The same holds for a creation request without an answer, of
which the engine records nothing.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from llmd_base.progress import Progress, Ticker

from llmd_oke.access.oci_client import OciClient, OciError
from llmd_oke.catalogue.operations import OciResource, oci_resources
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.planning.tags import STACK_TAG

State = Mapping[str, Any]
"""The `deployment` of a stack's state, as `pulumi stack export` returns it."""

Choices = Mapping[str, str]
"""The user's answers for resources that can't be matched, by resource name: the resource's ID, or `NONE`."""

_NEEDED = re.compile(r"{(\w+)}")

ClientOf = Callable[[], OciClient]
"""Function that makes a client of OCI; called only if OCI must be queried."""

NONE = "none"
"""Answer of the user for a pending resource that was never created."""

_CREATES = ("create", "create-replacement")
CREATION_S = 7200.0
"""Longest wait in seconds for OCI to finish the creation of recovered resources: `GPU_INSTANCE` of
`cluster/provider.py`."""

POLL_S = 15.0

BEGUN_FIELDS = ("urn", "type", "custom", "inputs", "parent", "provider", "protect")
"""Keys of a resource in a pending creation of the state."""

_NO_ANSWER = re.compile(r"net/http: (request canceled|timeout)|i/o timeout|connection reset by peer|\bEOF\b")
"""Error messages of Go's HTTP client for a request without an answer, which OCI may nevertheless have executed."""

_REPLACED = "pendingReplacement"
"""Key by which the engine marks a resource that is deleted and whose replacement isn't created yet. A resource without
that mark is deleted after its replacement is created.
"""


@dataclass(frozen=True)
class Pending:
    """Pending operation in the state: one that an engine began and didn't end. `operation` is `creating`, `deleting`,
    …; `is_custom` is true for resources that a provider creates, false for components.
    """

    operation: str
    urn: str
    type: str
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_custom: bool = True

    @property
    def name(self) -> str:
        """Name of the resource in the Pulumi program."""
        return self.urn.rsplit("::", 1)[-1]

    def __str__(self) -> str:
        return f"{self.operation} {self.type.rsplit(':', 1)[-1]} {self.name}"


@dataclass(frozen=True)
class Unmatched:
    """A pending creation with several matches in OCI, or of a type that can't be looked up; `show` is a command that
    lists the candidates.
    """

    pending: Pending
    reason: str
    show: str


@dataclass(frozen=True)
class Recovery:
    """Outcome of the pending operations of a state.

    `taken` are resources to be added to the state, with their IDs; `absent` weren't created; `known` are in the state
    already and will be refreshed; `unmatched` need the user's answer.
    """

    taken: tuple[tuple[Pending, str], ...] = ()
    absent: tuple[Pending, ...] = ()
    known: tuple[Pending, ...] = ()
    unmatched: tuple[Unmatched, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.taken or self.absent or self.known or self.unmatched)

    @property
    def urns(self) -> list[str]:
        """URNs of resources to refresh once they are in the state."""
        return [*(pending.urn for pending, _ in self.taken), *(pending.urn for pending in self.known)]

    def lines(self) -> Iterator[str]:
        """Yield a message about the outcome of each pending operation."""
        for pending, identifier in self.taken:
            yield f"{pending}: it is there, and is taken into the state ({identifier})"
        for pending in self.known:
            yield f"{pending}: the state knows it, and it is read again"
        for pending in self.absent:
            yield f"{pending}: it was not created"
        for unmatched in self.unmatched:
            yield f"{unmatched.pending}: {unmatched.reason}; {unmatched.show} shows what there is"


@dataclass(frozen=True)
class Orphan:
    """Resource in OCI with the stack's tag that isn't in its state. `delete` is the command that deletes it, `costs`
    true if it costs money.
    """

    type: str
    name: str
    identifier: str
    created: str
    delete: str
    costs: bool


Find = Callable[[Pending, Set[str]], str | Unmatched | None]
"""Function that looks up the resource of a pending creation: returns its ID, None if it wasn't created, or `Unmatched`.
The second argument has the IDs of the state's resources, which aren't candidates.
"""


def pending_operations(state: State) -> list[Pending]:
    """Return the pending operations of a state."""
    begun = [(item["type"], item["resource"]) for item in state.get("pending_operations") or ()]
    return [
        Pending(operation, new["urn"], new["type"], new.get("inputs") or {}, new.get("custom", False))
        for operation, new in begun
    ]


def unanswered_creations(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the resources whose creation failed for want of an answer, in the form of the state's pending creations.

    `events` are the engine's events in the CLI's event log.
    """
    failed: dict[str, dict[str, Any]] = {}
    silent: set[str] = set()
    for event in events:
        failure: Mapping[str, Any] = event.get("resOpFailedEvent") or {}
        metadata: Mapping[str, Any] = failure.get("metadata") or {}
        new: Mapping[str, Any] = metadata.get("new") or {}
        if metadata.get("op") in _CREATES:
            failed[metadata["urn"]] = {field: new[field] for field in BEGUN_FIELDS if new.get(field)}
        diagnostic: Mapping[str, Any] = event.get("diagnosticEvent") or {}
        if _NO_ANSWER.search(diagnostic.get("message") or ""):
            silent.add(diagnostic.get("urn") or "")
    return [resource for urn, resource in failed.items() if urn in silent]


def with_pending(state: State, resources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state with pending creations of the given resources added."""
    pending: Sequence[Any] = state.get("pending_operations") or ()
    begun = [{"resource": resource, "type": "creating"} for resource in resources]
    return {**state, "pending_operations": [*pending, *begun]}


def recover_unanswered(pulumi: PulumiCli, event_log: Path, progress: Progress, client: ClientOf) -> None:
    """Recover resources whose creation requests got no answer in an update, whose event log is given.

    Raises:
        KitError: as for `recover`.
    """
    lines = event_log.read_text().splitlines() if event_log.is_file() else ()
    begun = unanswered_creations(json.loads(line) for line in lines)
    if begun:
        names = ", ".join(str(resource["urn"]).rsplit("::", 1)[-1] for resource in begun)
        progress.step(f"no answer came to the request to create {names}: looking whether it is there")
        recover(pulumi, progress, client, begun=begun)


def look(state: State, find: Find, choices: Choices | None = None) -> Recovery:
    """Look up the resources of a state's pending operations, and return the outcome without a change of the state.
    `find` looks up resources of OCI; `choices` are the user's answers for unmatched ones.

    Raises:
        KitError: OCI doesn't answer, or a choice names no pending resource.
    """
    remaining = dict(choices or {})
    resources: Sequence[Mapping[str, Any]] = state.get("resources") or ()
    ids, urns = {str(resource.get("id") or "") for resource in resources}, {resource["urn"] for resource in resources}
    there = {(resource["urn"], resource.get("id")) for resource in resources if not resource.get(_REPLACED)}
    taken, absent, known, unmatched = list[tuple[Pending, str]](), list[Pending](), list[Pending](), list[Unmatched]()
    for pending in pending_operations(state):
        chosen = remaining.pop(pending.name, None)
        if pending.operation != "creating":
            known += [pending] if pending.urn in urns else []
            continue
        match _match(pending, find, ids) if chosen is None else (None if chosen == NONE else chosen):
            case None:
                absent.append(pending)
            case str(identifier) if (pending.urn, identifier) in there:
                known.append(pending)
            case str(identifier):
                taken.append((pending, identifier))
            case problem:
                unmatched.append(problem)
    if remaining:
        raise KitError(f"Nothing of the name {', '.join(remaining)} is pending.", "`llmd-oke recover` lists what is.")
    return Recovery(tuple(taken), tuple(absent), tuple(known), tuple(unmatched))


def recovered_state(state: State, recovery: Recovery) -> dict[str, Any]:
    """Return the state without pending operations and with the recovered resources.

    A replacement comes before the resource that it replaces, which is marked for deletion, or instead of a resource
    that is deleted already, as in a state that the engine itself writes.
    """
    begun = {item["resource"]["urn"]: item["resource"] for item in state.get("pending_operations") or ()}
    taken = {pending.urn: {**begun[pending.urn], "id": identifier} for pending, identifier in recovery.taken}
    added, resources = dict(taken), list[Any]()
    for resource in state.get("resources") or ():
        if resource["urn"] not in taken:
            resources.append(resource)
            continue
        resources += [new] if (new := added.pop(resource["urn"], None)) else []
        resources += [] if resource.get(_REPLACED) else [{**resource, "delete": True}]
    return {**state, "resources": [*resources, *added.values()], "pending_operations": []}


def no_client() -> OciClient:
    """Raise an error instead of making a client of OCI, for callers without access to OCI.

    Raises:
        KitError: always; the message names `llmd-oke recover`.
    """
    raise KitError("An engine was killed while it created something in OCI.", "`llmd-oke recover` settles that.")


def recover(
    pulumi: PulumiCli,
    progress: Progress,
    client: ClientOf = no_client,
    choices: Choices | None = None,
    begun: Sequence[Mapping[str, Any]] = (),
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Recovery:
    """Resolve the pending operations of a stack and the further creations `begun`: add existing resources to the state,
    wait until OCI has finished their creation, and refresh them. Returns the outcome; without pending operations,
    nothing is changed.

    Raises:
        KitError: a creation can't be matched, the state can't be read or changed (for example because another engine
            holds its lock), or OCI hasn't finished a creation after `CREATION_S`.
    """
    document = pulumi.export()
    state: State = with_pending(document.get("deployment") or {}, begun)
    recovery = look(state, in_oci(client), choices)
    if not recovery:
        return recovery
    progress.step("settling what an engine had begun and did not end")
    for line in recovery.lines():
        progress.detail(line)
    refuse_unmatched(recovery, pulumi.stack)
    pulumi.import_state({**document, "deployment": recovered_state(state, recovery)})
    _await_created(recovery.taken, client, progress, pause, clock)
    if recovery.urns and pulumi.read(recovery.urns):
        raise KitError("What was taken into the state can't be read from the cloud.", "`pulumi refresh` says why.")
    return recovery


def _await_created(
    taken: Sequence[tuple[Pending, str]],
    client: ClientOf,
    progress: Progress,
    pause: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    """Wait until OCI no longer works on the recovered resources, whether their creation succeeds or fails.

    Raises:
        KitError: OCI still works on a resource after `CREATION_S`.
    """
    ends_s, ticker = clock() + CREATION_S, Ticker(progress, clock=clock)
    while under_way := [line for pending, identifier in taken if (line := _under_way(pending, identifier, client))]:
        words = f"OCI is not done with {', '.join(under_way)}"
        if clock() >= ends_s:
            raise KitError(
                f"{words} after {CREATION_S / 60:.0f} minutes.",
                "The console's work requests say what it waits for. The same command goes on from there.",
            )
        ticker.tell(words, "creating")
        pause(POLL_S)


def _under_way(pending: Pending, identifier: str, client: ClientOf) -> str:
    """Return name and lifecycle state of a resource that OCI still works on; empty if OCI has finished, or if the state
    can't be looked up.
    """
    kind = oci_resources().resources.get(pending.type)
    inputs = {name: value for name, value in pending.inputs.items() if isinstance(value, str)}
    if kind is None or not kind.path or not kind.costs or set(_NEEDED.findall(kind.path)) - set(inputs):
        return ""
    listed = {str(item.get("id")): item for item in _listed(client(), kind, inputs)}
    state = str(listed.get(identifier, {}).get("lifecycleState"))
    return f"{pending.name} ({state})" if state in oci_resources().under_way else ""


def refuse_unmatched(recovery: Recovery, stack: str) -> None:
    """Refuse a recovery with unmatched creations.

    Raises:
        KitError: there are some; the message names each with the command that lists its candidates, and the remedy the
            command that resolves the first.
    """
    if not recovery.unmatched:
        return
    lines = "\n".join(f"  {item.pending}: {item.reason}\n    {item.show}" for item in recovery.unmatched)
    first = recovery.unmatched[0].pending.name
    raise KitError(
        f"An engine was killed while it created what can't be matched by name and tag:\n{lines}",
        f"Say which it is, or that there is none: llmd-oke recover --stack {stack} --yes --take {first}=<id or {NONE}>",
    )


def orphans(
    client: OciClient,
    stack_tag: str,
    compartments: Sequence[str],
    availability_domains: Sequence[str],
    state: State,
    recovery: Recovery,
    progress: Progress,
) -> list[Orphan]:
    """Return the orphans of a stack in these compartments: resources in OCI that have the stack's tag and that its
    state doesn't contain. Those that cost money come first.

    Resources that `recovery` adds to the state, and candidates of unmatched creations, aren't orphans. Resources that
    OKE or an instance pool creates (nodes, load balancers) are orphans, with or without the tag, only if their pool or
    cluster is gone: otherwise they are deleted with it. Resource types that this identity may not list are reported as
    progress and skipped.

    Raises:
        KitError: OCI doesn't answer.
    """
    known = {str(resource.get("id")) for resource in state.get("resources") or ()}
    known |= {identifier for _, identifier in recovery.taken}
    unmatched = [item.pending for item in recovery.unmatched]
    listed = {
        type_: _listed_in(client, kind, _list_queries(kind, compartments, availability_domains), progress)
        for type_, kind in oci_resources().resources.items()
    }
    holders = _holders(listed, stack_tag, known)
    results = list[Orphan]()
    for type_, items in listed.items():
        kind = oci_resources().resources[type_]
        for item in items:
            could_be = any(pending.type == type_ and _has_name(item, kind, pending) for pending in unmatched)
            if item["id"] in known or could_be or _is_gone(item):
                continue
            if holders.lost(_held_by(item, kind), tagged=_tag(item) == stack_tag):
                identifier, created = str(item["id"]), str(item.get("timeCreated") or "")
                name, delete = str(item.get(kind.listed_name or kind.name) or ""), kind.delete_command(identifier)
                results.append(Orphan(type_, name, identifier, created, delete, kind.costs))
    return sorted(results, key=lambda orphan: (not orphan.costs, orphan.type, orphan.name))


@dataclass(frozen=True)
class _Holders:
    """IDs of a stack's resources that contain or own other resources: all of them (`own`), and the existing ones
    (`live`).
    """

    own: Set[str]
    live: Set[str]

    def lost(self, held_by: Set[str], *, tagged: bool) -> bool:
        """Return True if a resource belongs to the stack and none of its owners exists; `held_by` are the IDs of its
        owners.
        """
        return (tagged or bool(held_by & self.own)) and not held_by & self.live


_SUBNET, _CLUSTER = "oci:Core/subnet:Subnet", "oci:ContainerEngine/cluster:Cluster"


def _holders(listed: Mapping[str, Sequence[Mapping[str, Any]]], stack_tag: str, known: Set[str]) -> _Holders:
    """Return the owners among the listed resources and the state's (`known`). A load balancer names only its subnet as
    owner, so that subnets count as existing owners only while the stack's cluster exists.
    """
    own, live = set(known), set(known)
    for items in listed.values():
        for item in items:
            pools = {str(pool["id"]) for pool in item.get("instancePools") or ()}  # only cluster networks have some
            if item["id"] in known or _tag(item) == stack_tag:
                own |= {str(item["id"]), *pools}
                live = live - {item["id"]} if _is_gone(item) else live | {str(item["id"]), *pools}
    if not any(item["id"] in live for item in listed[_CLUSTER]):
        live -= {str(item["id"]) for item in listed[_SUBNET]}
    return _Holders(own, live)


def _held_by(item: Mapping[str, Any], kind: OciResource) -> Set[str]:
    for way in kind.held_by:
        value: Any = item
        for step in way:
            value = value.get(step) or {}
        if value:
            return {value} if isinstance(value, str) else set(value)
    return frozenset()


def _listed_in(
    client: OciClient, kind: OciResource, queries: Iterable[Mapping[str, str]], progress: Progress
) -> list[Mapping[str, Any]]:
    """Return the resources of a type for each query, deleted ones included; none for a query that this identity isn't
    allowed.
    """
    items: list[Mapping[str, Any]] = []
    for inputs in queries:
        try:
            items += _listed(client, kind, inputs)
        except OciError as error:
            if error.status not in _NOT_ALLOWED:
                raise
            progress.step(
                f"not looked for: {kind.command}s of {inputs['compartmentId']}, which OCI doesn't list: {error}"
            )
    return items


_NOT_ALLOWED = (401, 403, 404)
"""HTTP statuses of OCI for a list request without permission."""


def kubernetes_id(pending: Pending) -> str | None:
    """Return the Pulumi ID of a Kubernetes object or Helm release, which consists of namespace and name; None for other
    resources.
    """
    named: Mapping[str, Any] = pending.inputs.get("metadata") or pending.inputs
    name, namespace = named.get("name"), named.get("namespace")
    if not name or not pending.type.startswith("kubernetes:"):
        return None
    return f"{namespace}/{name}" if namespace else str(name)


def in_oci(client: ClientOf) -> Find:
    """Return a function that looks up the resource of a pending creation in OCI by name and tag, among resources that
    the state doesn't have; IDs have the provider's form.
    """

    def find(pending: Pending, known: Set[str]) -> str | Unmatched | None:
        kind = oci_resources().resources.get(pending.type)
        if kind is None:
            return Unmatched(pending, "the kit doesn't know how OCI lists these", "the console of OCI")
        if kind.again:
            return None
        inputs = {name: value for name, value in pending.inputs.items() if isinstance(value, str)}
        missing = [name for name in _NEEDED.findall(kind.path) if name not in inputs]
        if missing or not kind.path:
            reason = f"its {', '.join(missing)} is not in the state" if missing else "it is not looked for"
            return Unmatched(pending, reason, kind.show_command(inputs))
        candidates = [
            item
            for item in _listed(client(), kind, inputs)
            if not _is_gone(item)
            and _has_name(item, kind, pending)
            and (not kind.tagged or _tag(item) == _tag(pending.inputs))
            and str(item.get("id")) not in known
        ]
        if len(candidates) > 1:
            ids = ", ".join(str(item.get("id")) for item in candidates)
            return Unmatched(pending, f"OCI has {len(candidates)} of that name ({ids})", kind.show_command(inputs))
        if not candidates:
            return None
        return kind.id.format_map(inputs) if kind.id else str(candidates[0]["id"])

    return find


def _match(pending: Pending, find: Find, known: Set[str]) -> str | Unmatched | None:
    """Return the ID of the resource of a pending creation, None if it wasn't created, or `Unmatched`. For a Kubernetes
    object the ID is returned without a lookup, since the refresh that follows reads the object.
    """
    if pending.type.startswith("kubernetes:"):
        return kubernetes_id(pending)
    if pending.type.startswith("pulumi:") or not pending.is_custom:
        return None  # providers and components exist only in the state
    return find(pending, known)


def _is_gone(item: Mapping[str, Any]) -> bool:
    return item.get("lifecycleState") in oci_resources().gone


def _listed(client: OciClient, kind: OciResource, inputs: Mapping[str, str]) -> list[Mapping[str, Any]]:
    path = kind.path.format_map(inputs)
    names = ["compartmentId", *kind.query] if "{" not in kind.path else []
    answer = client.get(kind.service, path, **{name: inputs[name] for name in names if inputs.get(name)})
    return answer[kind.items] if kind.items else answer


def _list_queries(
    kind: OciResource, compartments: Sequence[str], availability_domains: Sequence[str]
) -> Iterator[dict[str, str]]:
    """Yield the queries that list the possible orphans of a type; none for types without tags and for those that OCI
    lists only within another resource.
    """
    if kind.again or not kind.tagged or not kind.path or "{" in kind.path:
        return
    for compartment in compartments:
        if "availabilityDomain" in kind.query:
            yield from ({"compartmentId": compartment, "availabilityDomain": name} for name in availability_domains)
        else:
            yield {"compartmentId": compartment}


def _has_name(listed: Mapping[str, Any], kind: OciResource, pending: Pending) -> bool:
    """Return True if a resource that OCI lists has the name in the inputs of a pending creation."""
    return bool(listed.get(kind.listed_name or kind.name) == pending.inputs.get(kind.name))


def _tag(resource: Mapping[str, Any]) -> str | None:
    tags: Mapping[str, str] = resource.get("freeformTags") or {}
    return tags.get(STACK_TAG)
