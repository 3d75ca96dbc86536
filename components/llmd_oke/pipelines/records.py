"""Records that the jobs of a pipeline pass on as JSON files: stacks at a commit, changes, previews and rehearsals.

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
"""Most bytes of a record's file; that of a stack with 72 GPUs has 30 KiB."""

MAX_LINE = 600
"""Most characters of a text; longer ones are cut."""

MAX_ITEMS = 500
"""Most items of a list; further ones are left out."""


def _line(value: Any) -> Any:
    text = " ".join(value.split()) if isinstance(value, str) else value
    return f"{text[: MAX_LINE - 1]}…" if isinstance(text, str) and len(text) > MAX_LINE else text


def _few(value: Any) -> Any:
    return tuple(value)[:MAX_ITEMS] if isinstance(value, list | tuple) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


Line = Annotated[str, BeforeValidator(_line)]
"""Text on one line, cut after `MAX_LINE` characters."""

Lines = Annotated[tuple[Line, ...], BeforeValidator(_few)]
"""Texts, at most `MAX_ITEMS`."""

StackName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
"""Name of a stack file, without organization and project."""

CommitName = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40,64}$")]
"""Full hash of a Git commit."""

Operation = Literal["delete", "replace", "create", "update"]


class PipelineRecord(BaseModel):
    """Record of a pipeline: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PricedPart(PipelineRecord):
    """Part of a stack with its list price in US dollars per hour; None if no public price is known."""

    part: Line
    usd_per_hour: float | None


class PolicyBreach(PipelineRecord):
    """PolicyBreach of one of the project's policies."""

    policy: Line
    level: Literal["advisory", "mandatory"]
    text: Line


class ServersOfRole(PipelineRecord):
    """Servers of one role in all units of a model, with the number of GPUs of each."""

    role: Line
    servers: int
    gpus_each: int


class SnapshotModel(PipelineRecord):
    """A model of a stack: servers by role, and the way its requests take."""

    name: Line
    topology: Line
    copies: int
    gpus: int
    routed: bool
    roles: Annotated[tuple[ServersOfRole, ...], BeforeValidator(_few)]


class NodesOfPool(PipelineRecord):
    """A pool of GPU nodes."""

    name: Line
    shape: Line
    nodes: int


class StackSnapshot(PipelineRecord):
    """A stack as its file, values and program have it at one commit.

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
        """Sum of all known list prices in US dollars per hour."""
        return sum(part.usd_per_hour or 0.0 for part in self.costs)

    @property
    def deployable(self) -> bool:
        """True if neither problems nor mandatory policies refuse the stack."""
        return not self.problems and not any(breach.level == "mandatory" for breach in self.breaches or ())


class Snapshots(PipelineRecord):
    """All stacks of a project at one commit, or of a working tree if `commit` is None. `requirements` is the digest of
    the locked packages that the program runs with.
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
    """Stacks that differ between two commits, and the names of the others. `notes` say what the comparison can't
    tell.
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
    """Resource that an update changes, with the paths of changed inputs; those of `replaced_by` replace it."""

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
    """The figures of a passport that a reviewer reads, in its own units; None if the benchmark doesn't have one."""

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
    """Write a record as JSON, and make its folder.

    Raises:
        KitError: the file can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, record.model_dump_json(indent=2) + "\n")


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a record.

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
