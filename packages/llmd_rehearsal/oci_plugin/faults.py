"""Fault injection: rules of a fault file say which requests to OCI fail, how, and how often.

```yaml
faults:
  - resource: NodePool              # a type, or a pattern such as "*"
    name: gpu*                      # the resource's name in the program or at OCI; every name if left out
    operation: create               # create (if left out), update, delete or "*"
    fault: out-of-host-capacity     # one of the values of Fault
    times: 1                        # number of requests that fail; all if left out
    nodes: 2                        # number of nodes that are affected; all if left out
    message: disk full              # OCI's error message, for late-failure
    state: NEEDS_ATTENTION          # for a creation that fails late: the state that the plug-in records; with
                                    # TERMINATED or DELETED, OCI deletes the resource, whatever its type
```

The file is read before every operation, so that it can be changed between two runs of the engine.
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
    """Kinds of faults that requests to OCI or simulated nodes can have."""

    TOO_MANY_REQUESTS = "too-many-requests"
    """OCI answers with status 429, `times` times in a row; the OCI plug-in retries as the real one does."""
    INTERNAL_ERROR = "internal-error"
    """OCI answers immediately with status 500."""
    OUT_OF_HOST_CAPACITY = "out-of-host-capacity"
    """OCI has no host capacity: an instance is refused immediately, a pool fails later. A node pool whose creation
    fails is deleted with all its nodes; other resources are kept without the missing nodes.
    """
    NODE_NEVER_JOINS = "node-never-joins"
    """Instances of a node pool are launched but never join the cluster as nodes."""
    LATE_FAILURE = "late-failure"
    """OCI accepts the request and the work fails later; the resource is in state FAILED. A cluster, node pool or add-on
    whose creation fails is deleted.
    """
    SLOW = "slow"
    """OCI's work on the request takes five times as long as usual."""
    TIMEOUT = "timeout"
    """The OCI plug-in reaches its time limit and reports a failure; OCI finishes the work, and the resource is
    healthy.
    """
    ANSWER_LOST = "answer-lost"
    """OCI accepts a creation request and the answer is lost. The OCI plug-in retries with the same retry token and may
    get an answer. If all answers are lost, the resource exists and the engine doesn't know its id. A request to change
    or delete a resource is lost before it reaches OCI.
    """

    SLOW_LINK = "slow-link"
    """Fault of a node: one RDMA port has a quarter of its line rate."""
    DEAD_GPU = "dead-gpu"
    """Fault of a node: one GPU isn't visible."""
    WRONG_GID = "wrong-gid"
    """Fault of a node: the GID of one RDMA port is of RoCE v1."""
    MISSING_VIRTUAL_FUNCTION = "missing-vf"
    """Fault of a node: pods get one RDMA virtual function less than they request."""
    SLOW_GPU = "slow-gpu"
    """Fault of a node: one GPU copies and multiplies at a quarter of its usual rate."""
    MISSING_DISK = "missing-disk"
    """Fault of a node: one NVMe disk is missing."""
    MEMORY_ERRORS = "memory-errors"
    """Fault of a node: the GPU exporter reports uncorrectable memory errors of one GPU."""
    XGMI_ERRORS = "xgmi-errors"
    """Fault of a node: the GPU exporter reports errors on the xGMI links of one GPU."""
    HOT_GPU = "hot-gpu"
    """Fault of a node: one GPU has a temperature of 105 degrees Celsius."""
    LINK_DOWN = "link-down"
    """Fault of a node: node exporter reports one RDMA port without a link."""
    CONGESTION = "congestion"
    """Fault of a node: node exporter reports that one RDMA port waits to send."""


NODE = "Node"
"""Value of a fault rule's `resource` for faults of nodes. Pods that use all GPUs of the node, or the exporters, show
these faults.
"""

NODE_FAULTS = (
    *(Fault.SLOW_LINK, Fault.DEAD_GPU, Fault.WRONG_GID, Fault.MISSING_VIRTUAL_FUNCTION),
    *(Fault.SLOW_GPU, Fault.MISSING_DISK),
    *(Fault.MEMORY_ERRORS, Fault.XGMI_ERRORS, Fault.HOT_GPU, Fault.LINK_DOWN, Fault.CONGESTION),
)


class FaultRule(Entry):
    """Rule of a fault file that gives requests to OCI, or simulated nodes, a fault; selected by type and name of the
    resource and by operation.
    """

    resource: str = "*"
    name: str = "*"
    operation: str = "create"
    fault: Fault
    times: int | None = Field(default=None, ge=1)
    nodes: int | None = Field(default=None, ge=1)
    message: str = "The service reported an internal error."
    state: str | None = None

    def matches(self, resource: str, names: Sequence[str], operation: str) -> bool:
        """Tell whether the rule applies to a request for a resource; `names` are the resource's names in the program
        and at OCI.
        """
        same_type = fnmatch.fnmatchcase(operation, self.operation) and fnmatch.fnmatchcase(resource, self.resource)
        return same_type and any(fnmatch.fnmatchcase(name, self.name) for name in names)


_RULE = re.compile(r"(?P<resource>[A-Za-z*?]+)(/(?P<name>[^:]+))?:(?P<fault>[a-z-]+)(:(?P<times>[1-9][0-9]*))?")


def parse_rule(text: str) -> FaultRule:
    """Return the fault rule that a text such as `Cluster/prod:internal-error:1` describes (here one failure); the rule
    applies to all operations on the resource.

    Raises:
        KitError: the text isn't a valid rule; the message says what is valid.
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
    """Write fault rules to a file, replacing its content."""
    path.write_text(json.dumps({"faults": [rule.model_dump(mode="json") for rule in rules]}, indent=1) + "\n")


class _FaultsFile(Entry):
    faults: tuple[FaultRule, ...] = ()


class Faults:
    """Rules of a fault file, which may be missing, with a count of how often each rule was applied."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._counts: dict[FaultRule, int] = {}

    def take(self, resource: str, names: Sequence[str], operation: str) -> FaultRule | None:
        """Return the fault rule that applies to a request, None if no rule does; a returned rule counts as applied once
        more.

        Raises:
            OperationRefusal: the fault file is invalid.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            rules = _FaultsFile.model_validate(read_yaml(self._path) or {}).faults
        except ValidationError as error:
            raise OperationRefusal(f"{self._path} holds no faults: {error}") from None
        with self._lock:
            for rule in rules:
                count = self._counts.get(rule, 0)
                if rule.matches(resource, names, operation) and (rule.times is None or count < rule.times):
                    self._counts[rule] = count + 1
                    return rule
        return None
