"""Faults on request: a file says which requests fail, how, and how often.

```yaml
faults:
  - resource: NodePool              # a type, or a pattern such as "*"
    name: gpu*                      # the resource's name in the program or in OCI; every name if left out
    operation: create               # create (if left out), update, delete or "*"
    fault: out-of-host-capacity     # see Fault
    times: 1                        # as often, then no more; each time if left out
    nodes: 2                        # how many nodes it hits; all if left out
    message: what OCI says          # for late-failure
    state: NEEDS_ATTENTION          # of a creation that fails late: the state that the plug-in records; TERMINATED and
                                    # DELETED have OCI take the resource back, whatever its type
```

The file is read again before every operation, so that it can be changed between two runs of the engine.
"""

import enum
import fnmatch
import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path

from llmd_base.errors import KitError
from llmd_oke.config.shape_problems import closest
from llmd_oke.values import Entry, read_yaml
from pydantic import Field, ValidationError

from llmd_rehearsal.oci_plugin.facts import resources
from llmd_rehearsal.plugin_values import OperationRefusal


class Fault(enum.StrEnum):
    """Faults of a request, or of a node."""

    TOO_MANY_REQUESTS = "too-many-requests"
    """429, again and again as often as `times` says; the plug-in tries again as the real one does."""
    INTERNAL_ERROR = "internal-error"
    """500, at once."""
    OUT_OF_HOST_CAPACITY = "out-of-host-capacity"
    """No machine is free: at once for an instance, after a while for a pool. A node pool that is being created goes
    again with all its nodes; others are there without the missing ones."""
    NODE_NEVER_JOINS = "node-never-joins"
    """Nodes are launched and never show up in the cluster."""
    LATE_FAILURE = "late-failure"
    """OCI accepts the request and gives up later; the resource is there, in state FAILED. A cluster, a node pool or an
    add-on that is being created goes again."""
    SLOW = "slow"
    """The work takes five times as long as usual."""
    TIMEOUT = "timeout"
    """The plug-in waits as long as it may and gives up; OCI goes on, and the resource is there and well."""
    ANSWER_LOST = "answer-lost"
    """OCI accepts a request to create and its answer is lost; the plug-in asks again, with the same retry token, and
    may get the answer to that. Where all are lost, the resource is there and the engine doesn't know its id. A request
    to change or to delete is lost on its way to OCI."""

    SLOW_LINK = "slow-link"
    """Of a node: one RDMA port carries a quarter of its line rate."""
    DEAD_GPU = "dead-gpu"
    """Of a node: one GPU is not seen any more."""
    WRONG_GID = "wrong-gid"
    """Of a node: one port's GID is of RoCE v1."""
    MISSING_VIRTUAL_FUNCTION = "missing-vf"
    """Of a node: pods get one virtual function less than they ask for."""
    SLOW_GPU = "slow-gpu"
    """Of a node: one GPU copies and multiplies at a quarter of its usual rate."""
    MISSING_DISK = "missing-disk"
    """Of a node: the kernel has one NVMe disk less."""
    MEMORY_ERRORS = "memory-errors"
    """Of a node: one GPU's exporter tells of memory errors that can't be corrected."""
    XGMI_ERRORS = "xgmi-errors"
    """Of a node: one GPU's exporter tells of errors on its xGMI links."""
    HOT_GPU = "hot-gpu"
    """Of a node: one GPU is at 105 degrees Celsius."""
    LINK_DOWN = "link-down"
    """Of a node: one RDMA port has no link, as node exporter tells it."""
    CONGESTION = "congestion"
    """Of a node: one RDMA port waits to send, as node exporter tells it."""


NODE = "Node"
"""The resource of faults that are a node's own. They are met by pods that take all GPUs of it, or told by exporters."""

NODE_FAULTS = (
    *(Fault.SLOW_LINK, Fault.DEAD_GPU, Fault.WRONG_GID, Fault.MISSING_VIRTUAL_FUNCTION),
    *(Fault.SLOW_GPU, Fault.MISSING_DISK),
    *(Fault.MEMORY_ERRORS, Fault.XGMI_ERRORS, Fault.HOT_GPU, Fault.LINK_DOWN, Fault.CONGESTION),
)


class FaultRule(Entry):
    """A fault and the requests that it hits, by type and name of the resource and by operation."""

    resource: str = "*"
    name: str = "*"
    operation: str = "create"
    fault: Fault
    times: int | None = Field(default=None, ge=1)
    nodes: int | None = Field(default=None, ge=1)
    message: str = "The service reported an internal error."
    state: str | None = None

    def matches(self, resource: str, names: Sequence[str], operation: str) -> bool:
        """Tell whether the rule hits a request; `names` are the resource's in the program and in OCI."""
        same_type = fnmatch.fnmatchcase(operation, self.operation) and fnmatch.fnmatchcase(resource, self.resource)
        return same_type and any(fnmatch.fnmatchcase(name, self.name) for name in names)


_RULE = re.compile(r"(?P<resource>[A-Za-z*?]+)(/(?P<name>[^:]+))?:(?P<fault>[a-z-]+)(:(?P<times>[1-9][0-9]*))?")


def parse_rule(text: str) -> FaultRule:
    """Return the rule that a text such as `Cluster/prod:internal-error:1` (once) says; it hits all operations.

    Raises:
        KitError: the text is no fault; the message says what is.
    """
    match = _RULE.fullmatch(text)
    known = sorted({NODE, *(resource.name for resource in resources().values())})
    types = f"Types of OCI's resources here: {', '.join(known)}."
    if match is None or match["fault"] not in set(Fault):
        accepted = f"A type of OCI's resources, a name if it matters, and one of {', '.join(Fault)}"
        example = "for example NodePool/mi300x*:out-of-host-capacity"
        raise KitError(f"{text!r} is no fault.", f"{accepted}: {example}. {types}")
    if not fnmatch.filter(known, match["resource"]):
        near = closest(match["resource"], known)
        advice = f"Did you mean {near}? " if near else ""
        raise KitError(f"OCI has no {match['resource']!r} here.", f"{advice}{types}")
    if (Fault(match["fault"]) in NODE_FAULTS) != (match["resource"] == NODE):
        others = f"{NODE}[/NAME]: and one of {', '.join(NODE_FAULTS)}; all other faults are for OCI's own resources."
        raise KitError(f"{match['resource']} has no fault {match['fault']}.", others)
    return FaultRule(
        resource=match["resource"],
        name=match["name"] or "*",
        operation="*",
        fault=Fault(match["fault"]),
        times=int(match["times"]) if match["times"] else None,
    )


def write_rules(path: Path, rules: Sequence[FaultRule]) -> None:
    """Write rules to a file, in place of those that it has."""
    path.write_text(json.dumps({"faults": [rule.model_dump(mode="json") for rule in rules]}, indent=1) + "\n")


class _FaultsFile(Entry):
    faults: tuple[FaultRule, ...] = ()


class Faults:
    """The faults of a file, which need not be there; counts how often each was taken."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._counts: dict[FaultRule, int] = {}

    def take(self, resource: str, names: Sequence[str], operation: str) -> FaultRule | None:
        """Return the fault that hits a request now, or None; a returned fault counts as one of its `times`.

        Raises:
            OperationRefusal: the file can't be read as faults.
        """
        with self._lock:
            for rule in self._rules():
                count = self._counts.get(rule, 0)
                if rule.matches(resource, names, operation) and (rule.times is None or count < rule.times):
                    self._counts[rule] = count + 1
                    return rule
        return None

    def _rules(self) -> tuple[FaultRule, ...]:
        if self._path is None or not self._path.exists():
            return ()
        try:
            return _FaultsFile.model_validate(read_yaml(self._path) or {}).faults
        except ValidationError as error:
            raise OperationRefusal(f"{self._path} holds no faults: {error}") from None
