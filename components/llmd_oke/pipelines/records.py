"""Records that the jobs of a pipeline exchange as JSON files: stacks at a commit, changes, previews and rehearsals.

A job that runs code nobody has read yet writes them, a job that runs code of the main branch reads them. So texts and
lists are bounded, names are names, and nothing in a record is Markdown.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from llmd_base.documents import explain
from llmd_base.errors import KitError
from llmd_bench.files import write_whole
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

MAX_FILE_BYTES = 8 * 2**20
"""Maximum size in bytes of a record's file; that of a stack with 72 GPUs has 30 KiB."""

MAX_LINE = 600
"""Maximum number of characters of a text in a record; longer texts are truncated."""

MAX_ITEMS = 500
"""Maximum number of items of a list in a record; further items are left out."""


def _line(value: Any) -> Any:
    text = " ".join(value.split()) if isinstance(value, str) else value
    return f"{text[: MAX_LINE - 1]}…" if isinstance(text, str) and len(text) > MAX_LINE else text


def _few(value: Any) -> Any:
    return tuple(value)[:MAX_ITEMS] if isinstance(value, list | tuple) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


Line = Annotated[str, BeforeValidator(_line)]
"""Text on one line in a record, truncated after `MAX_LINE` characters."""

Lines = Annotated[tuple[Line, ...], BeforeValidator(_few)]
"""List of texts in a record, of at most `MAX_ITEMS` items."""

StackName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
"""Name of a stack file, without organization and project."""

CommitName = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40,64}$")]
"""Full hash of a Git commit."""

Operation = Literal["delete", "replace", "create", "update"]


class PipelineRecord(BaseModel):
    """Base class of a pipeline's records: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PricedPart(PipelineRecord):
    """Part of a stack with its list price in US dollars per hour; None if no public price is known."""

    part: Line
    usd_per_hour: float | None


class PolicyBreach(PipelineRecord):
    """Violation of one of the project's policies by a stack."""

    policy: Line
    level: Literal["advisory", "mandatory"]
    text: Line


class ServersOfRole(PipelineRecord):
    """Servers of one role in all units of a model, with the number of GPUs of each."""

    role: Line
    servers: int
    gpus_each: int


class SnapshotModel(PipelineRecord):
    """Model of a stack: the number of copies and of their GPUs together, the servers of each role in all copies, and
    whether requests pass through a router (`routed`).
    """

    name: Line
    topology: Line
    copies: int
    gpus: int
    routed: bool
    roles: Annotated[tuple[ServersOfRole, ...], BeforeValidator(_few)]


class NodesOfPool(PipelineRecord):
    """Pool of GPU nodes of a stack."""

    name: Line
    shape: Line
    nodes: int


class StackSnapshot(PipelineRecord):
    """Snapshot of a stack at one commit: what it plans, costs and declares.

    Attributes:
        stack: the stack's name.
        problems: reasons why it can't be deployed; then all that follows is empty.
        unrendered: reason why its program can't be run here; empty if `resources` are those that it declares.
        resources: digest of each declared resource and setting, by its type and name.
        config_hash: hash of the deployed configuration.
        costs: list prices.
        breaches: breaches of policies; None if the project has no policies.
        advice: advice that calls for a decision.
        entry: how clients reach the models; empty if there are no models.
        models: the models.
        pools: the pools of GPU nodes.
        gpus: GPUs of all pools.
        used_gpus: GPUs that servers use.
    """

    stack: StackName
    problems: Lines = ()
    unrendered: Line = ""
    resources: dict[Line, str] = {}
    config_hash: str = ""
    costs: Annotated[tuple[PricedPart, ...], BeforeValidator(_few)] = ()
    breaches: Annotated[tuple[PolicyBreach, ...] | None, BeforeValidator(_few)] = None
    advice: Lines = ()
    entry: Line = ""
    models: Annotated[tuple[SnapshotModel, ...], BeforeValidator(_few)] = ()
    pools: Annotated[tuple[NodesOfPool, ...], BeforeValidator(_few)] = ()
    gpus: int = 0
    used_gpus: int = 0

    @property
    def usd_per_hour(self) -> float:
        """Sum of the known list prices of the stack's parts in US dollars per hour."""
        return sum(part.usd_per_hour or 0.0 for part in self.costs)

    @property
    def deployable(self) -> bool:
        """True if neither problems nor mandatory policies refuse the stack."""
        return not self.problems and not any(breach.level == "mandatory" for breach in self.breaches or ())


class Snapshots(PipelineRecord):
    """Snapshots of all stacks of a project at one commit, or of a working tree if `commit` is None. `requirements` is
    the digest of the locked packages that the program runs with.
    """

    commit: CommitName | None
    requirements: str
    stacks: Annotated[tuple[StackSnapshot, ...], BeforeValidator(_few)]


class TouchedStack(PipelineRecord):
    """Change of one stack between two commits; `before` is None if it is new, `after` if it is removed."""

    stack: StackName
    kind: Literal["new", "changed", "removed"]
    before: StackSnapshot | None
    after: StackSnapshot | None
    created: Lines = ()
    changed: Lines = ()
    deleted: Lines = ()


class ProjectChanges(PipelineRecord):
    """Stacks of a project that differ between two commits, and the names of the others. `notes` are limits of the
    comparison.
    """

    base: CommitName
    head: CommitName
    changes: Annotated[tuple[TouchedStack, ...], BeforeValidator(_few)] = ()
    untouched: Annotated[tuple[StackName, ...], BeforeValidator(_few)] = ()
    notes: Lines = ()

    @property
    def touched(self) -> tuple[str, ...]:
        """Names of the new and changed stacks that can be deployed."""
        return tuple(item.stack for item in self.changes if item.after is not None and item.after.deployable)


class PreviewedResource(PipelineRecord):
    """Resource that an update changes, with the paths of changed inputs; `replaced_by` are the inputs that cause its
    replacement.
    """

    operation: Operation
    resource: Line
    replaced_by: Lines = ()
    changed: Lines = ()


class PreviewReport(PipelineRecord):
    """Preview of a stack's update.

    Attributes:
        stack: the stack's name.
        missing: reason why there is no preview; empty if there is one.
        counts: number of resources by operation, unchanged ones as `same`.
        resources: the changed resources.
        refusals: reasons why the update would be refused.
        by_hand: changes by hand.
        first: servers that must be deleted before the update; empty if there are none.
        advice: advice on the stack file.
        size: nodes, GPUs and price in one sentence.
        not_compared: number of resources with secrets, which the preview doesn't know.
    """

    stack: StackName
    missing: Line = ""
    counts: dict[Line, int] = {}
    resources: Annotated[tuple[PreviewedResource, ...], BeforeValidator(_few)] = ()
    refusals: Lines = ()
    by_hand: Lines = ()
    first: Line = ""
    advice: Lines = ()
    size: Line = ""
    not_compared: int = 0


class PassportExcerpt(PipelineRecord):
    """Figures of a model's passport that reviewers read, with units in their names; None if the benchmark doesn't have
    one.
    """

    model: Line
    topology: Line
    basis: Line
    smoke_passed: bool
    failed_checks: Lines = ()
    ttft_p95_ms: float | None = None
    itl_p95_ms: float | None = None
    output_tokens_per_s: float | None = None
    remote_prefill_share: float | None = None
    accuracy: Line = ""
    usd_per_million_output_tokens: float | None = None
    config_hash: str = ""


class RehearsalReport(PipelineRecord):
    """Rehearsal of a stack's change: of the update from `base`, or of a new deployment if that is None."""

    stack: StackName
    base: CommitName | None
    passed: bool
    seconds: float
    changes: Line = ""
    error: Line = ""
    passports: Annotated[tuple[PassportExcerpt, ...], BeforeValidator(_few)] = ()


Record = TypeVar("Record", bound=PipelineRecord)


def write_record(path: Path, record: PipelineRecord) -> None:
    """Write a record as JSON file, and create its folder.

    Raises:
        KitError: the file can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, record.model_dump_json(indent=2) + "\n")


def read_record(path: Path, kind: type[Record]) -> Record:
    """Return the record in a JSON file, of type `kind`.

    Raises:
        KitError: the file can't be read, is too long, or has no such record.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise KitError(f"{path} is longer than {MAX_FILE_BYTES // 2**20} MiB, which no job writes.")
        return kind.model_validate_json(content)
    except OSError as error:
        raise KitError(f"{path} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        raise KitError(f"{path} is no {kind.__name__}: {explain(error, 'file')[:MAX_LINE]}") from error
