"""Options that the `tune` commands share, and the search, model and latency figures that they select."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from llmd_base.errors import KitError
from llmd_base.row import Row
from llmd_bench.files import Rejection, read_rows
from llmd_oke import config, planning
from llmd_oke.catalogue import CatalogueModel, NodeHardware, Shape, gpu_names
from llmd_oke.catalogue.latency_figures import LatencyFigures, known_figures, read_figures
from llmd_oke.catalogue.releases import default_release
from llmd_oke.cli import console, options
from llmd_oke.config.engine import DEFAULT_ENGINE, KvCache
from llmd_oke.config.model import RouterProfileName
from llmd_oke.planning.conditions import VLLM_DEFAULTS, DeployedConditions, deployed_conditions
from llmd_oke.planning.server_choices import ServerChoices, accepted_servers

from llmd_tuner import confidence, search_inputs, workload
from llmd_tuner.calibration import calibrate
from llmd_tuner.confidence import Confidence
from llmd_tuner.experiments.records import current_rows, rows_file
from llmd_tuner.row_filters import Inspection, inspect_by_model
from llmd_tuner.search_inputs import SearchInputs, Targets, joined, parse_targets
from llmd_tuner.workload import WorkloadClasses

ModelName = Annotated[str | None, typer.Option("--model", help="Model of the catalogue, without a stack.")]
ShapeName = Annotated[
    str | None, typer.Option("--shape", help="Shape of the GPU nodes, without a stack; BM.GPU.MI300X.8 if left out.")
]
GpuName = Annotated[
    str | None, typer.Option("--gpu", help=f"GPU product instead of a shape: {', '.join(gpu_names())}.")
]
Figures = Annotated[
    Path | None,
    typer.Option(
        help="Latency figures of `tune fit`. If left out, fitted to the rows of `tune run`; else the kit's own.",
        dir_okay=False,
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Which model of the stack, where it has several.")]
Slo = Annotated[str, typer.Option("--slo", help="Targets, with commas: ttft=MS, itl=MS, e2e=MS (means), qps=RATE.")]
WorkloadText = Annotated[
    str | None,
    typer.Option("--workload", help="Lengths, ISL/OSL: 4096/256, or several with weights: 7:4096/256,3:512/128."),
]

DEFAULT_SHAPE = "BM.GPU.MI300X.8"
STACK_OR_GPU = "Leave out --shape and --gpu, or name --model instead of --stack."
DEFAULT_WORKLOAD = "4096/256"
DEFAULT_GPUS = 16
QUICK_GPUS = 32
"""Number of GPUs up to which a search over all deployments takes at most a second or two."""


@dataclass(frozen=True)
class ModelOptions:
    """Options that select what is searched: a model of a stack, or a model on a shape or GPU."""

    project: options.Project = options.HERE
    stack: Annotated[
        str | None, typer.Option("--stack", "-s", help="Take model, workload, targets and GPUs from this stack.")
    ] = None
    model: ModelName = None
    shape: ShapeName = None
    gpu: GpuName = None


@dataclass(frozen=True)
class SearchOptions:
    """Command-line options that all searches for the best deployment share."""

    name: Name = None
    slo: Slo = ""
    gpus: Annotated[
        int | None, typer.Option("--gpus", help="GPUs to search; those that the stack has.", min=1, max=128)
    ] = None
    workload: WorkloadText = None
    trace: Annotated[
        Path | None,
        typer.Option(help="Lengths from a trace: JSON Lines or CSV with input_tokens, output_tokens.", dir_okay=False),
    ] = None
    prefix_hits: Annotated[
        float,
        typer.Option(help="Share of prompt tokens that the prefix caches of prefill answer, as watched.", min=0, max=1),
    ] = 0.0
    host_hits: Annotated[
        float,
        typer.Option(
            help="Share of prompt tokens that comes from the memory of prefill's nodes (engine.kvCache), as watched.",
            min=0,
            max=1,
        ),
    ] = 0.0
    figures: Figures = None
    max_num_seqs: Annotated[
        int, typer.Option(help="Largest batch to consider (vLLM's --max-num-seqs).", min=1, max=4096)
    ] = DEFAULT_ENGINE.max_num_seqs
    allow_extrapolation: Annotated[
        bool,
        typer.Option(
            "--allow-extrapolation", help="Go beyond what the latency figures were fitted to; results say so."
        ),
    ] = False
    measurements: Annotated[
        list[Path] | None, typer.Option("--measurements", help="Rows to fit instead; several times.", dir_okay=False)
    ] = None


@dataclass(frozen=True)
class SearchContext:
    """Checked inputs of a search for the best deployment: model and nodes, workload and targets (`question`), the
    confidence in the forecasts, and the settings that servers are started with (`started`).
    """

    model: CatalogueModel
    node: NodeHardware
    question: SearchInputs
    confidence: Confidence
    started: DeployedConditions
    kv_cache: KvCache = field(default_factory=KvCache)
    """Where the stack's servers keep KV cache besides GPU memory."""


@dataclass(frozen=True)
class _Defaults:
    """Model, load and servers of a stack, or those that stand in where no stack is named."""

    model: CatalogueModel
    node: NodeHardware
    workload: WorkloadClasses
    targets: Targets
    gpus: int
    choices: ServerChoices | None = None
    kv_cache: KvCache = field(default_factory=KvCache)
    started: DeployedConditions = VLLM_DEFAULTS
    profile: RouterProfileName = "token-load"


def search_context(where: ModelOptions, search: SearchOptions) -> SearchContext:
    """Return the inputs of the search that the options ask for.

    Raises:
        KitError: options contradict each other, name something unknown, or need figures beyond what was measured.
    """
    if (where.stack is None) == (where.model is None):
        raise KitError("Either a stack or a model has to be named.", "--stack S, or --model M.")
    if search.workload and search.trace:
        raise KitError("A workload and a trace exclude each other.", "Give --workload or --trace.")
    if search.prefix_hits + search.host_hits > 1:
        raise KitError(
            "More than all prompt tokens are cached.", "--prefix-hits and --host-hits are at most 1 together."
        )
    known = _of_stack(where, search) if where.stack else _of_model(where, search)
    stored = rows_file(where.project, where.stack) if where.stack else None
    figures = best_figures(search.figures, search.measurements or (), stored, known.model, known.node)
    question = search_inputs.question_of(
        known.model,
        known.node,
        figures,
        replace(known.workload, prefix_cache_hit_share=search.prefix_hits, host_hit_share=search.host_hits),
        known.targets,
        search.gpus or known.gpus,
        max_num_seqs=search.max_num_seqs,
        choices=known.choices,
        started=known.started,
        profile=known.profile,
    )
    question, trust = confidence.confine(question, figures, search.allow_extrapolation, known.started)
    return SearchContext(known.model, known.node, question, trust, known.started, known.kv_cache)


def announce(context: SearchContext) -> None:
    """Print that a search begins, unless it has so few GPUs that it ends within a second or two."""
    gpus = context.question.hardware.gpus
    if gpus > QUICK_GPUS:
        console.progress().step(f"searching the deployments of up to {gpus} GPUs")


def named_node(shape: str | None, gpu: str | None) -> NodeHardware | None:
    """Return the hardware of the nodes of a shape or with a GPU product; None where neither is given.

    Raises:
        KitError: both are given, or the catalogue has no such shape or GPU.
    """
    if shape and gpu:
        message = "A shape and a GPU exclude each other: a shape says which GPU it has."
        raise KitError(message, f"Give --shape {shape} or --gpu {gpu}.")
    if shape:
        return search_inputs.known_shape(shape)
    return search_inputs.known_gpu(gpu) if gpu else None


def model_index(names: Sequence[str], name: str | None) -> int:
    """Return the index of a model among the names of a stack's models.

    Raises:
        KitError: there is no such model, or the stack has several and `name` is None.
    """
    if name is None and len(names) == 1:
        return 0
    if name in names:
        return names.index(name)
    message = "The stack has several models." if name is None else f"The stack has no model {name!r}."
    raise KitError(message, f"--name is one of: {', '.join(names) or 'none'}.")


def _of_model(where: ModelOptions, search: SearchOptions) -> _Defaults:
    model = search_inputs.known_model(where.model or "")
    node = named_node(where.shape, where.gpu) or search_inputs.known_shape(DEFAULT_SHAPE)
    load = _workload(search) or workload.parse(DEFAULT_WORKLOAD)
    started = (
        deployed_conditions(default_release(), model, config.Engine()) if isinstance(node, Shape) else VLLM_DEFAULTS
    )
    return _Defaults(model, node, load, _targets(search, load, Targets()), DEFAULT_GPUS, started=started)


def _of_stack(where: ModelOptions, search: SearchOptions) -> _Defaults:
    if where.shape or where.gpu:
        raise KitError("A stack says itself which GPUs it has.", STACK_OR_GPU)
    plan = planning.plan_stack_file(where.project, where.stack or "")
    index = model_index([model.name for model in plan.models], search.name)
    chosen = plan.models[index]
    slo = chosen.slo or config.Slo()
    load = _workload(search) or workload.of_lengths(chosen.workload.input_tokens, chosen.workload.output_tokens)
    gpus = chosen.gpus + plan.gpus - plan.used_gpus  # those that the model has, and those that none has
    return _Defaults(
        chosen.model,
        plan.pools[0].shape,
        load,
        _targets(search, load, Targets(slo.ttft_ms and slo.ttft_ms / 1000, slo.itl_ms and slo.itl_ms / 1000)),
        gpus,
        accepted_servers(plan, index, search.gpus or gpus),
        chosen.engine.kv_cache,
        deployed_conditions(plan.release, chosen.model, chosen.engine),
        chosen.profile,
    )


def _targets(search: SearchOptions, load: WorkloadClasses, others: Targets) -> Targets:
    """Return the targets of the command line, completed by the stack file's, then by the trace's own rate."""
    return joined(joined(parse_targets(search.slo), others), Targets(requests_per_s=load.requests_per_s))


def _workload(search: SearchOptions) -> WorkloadClasses | None:
    if search.trace:
        return workload.read_trace(search.trace)
    return workload.parse(search.workload) if search.workload else None


def show_findings(inspection: Inspection, rejected: tuple[Rejection, ...] = ()) -> None:
    """Print the parts of results files that could not be read, and the rules that measured rows break."""
    for item in rejected:
        console.tell(f"not read {item}")
    for finding in inspection.findings:
        console.tell(str(finding))


def figures_of(path: Path | None, model: CatalogueModel, node: NodeHardware) -> LatencyFigures:
    """Return the latency figures in the file `path` or, without a path, the kit's own for the model and the node's GPU,
    which are bounds computed from the hardware where nothing was measured.

    Raises:
        KitError: the file contains no figures, or those of another model or GPU.
    """
    if path is None:
        return known_figures(model, node.gpu)
    return search_inputs.checked_figures(read_figures(path), model, node)


def best_figures(
    figures: Path | None, rows: Sequence[Path], stored: Path | None, model: CatalogueModel, node: NodeHardware
) -> LatencyFigures:
    """Return latency figures from the first of these sources that exists: the file `figures`, a fit to the files
    `rows`, a fit to the stack's own rows in `stored`, or the kit. Prints which source it was, unless it was `figures`.

    Raises:
        KitError: a source can't be used.
    """
    base = figures_of(figures, model, node)
    if figures is not None and not rows:
        return base
    if rows:
        named = [row for path in rows for row in read_rows(path)]
        return calibrate(_accepted(named), model, node, base).figures
    accepted = _accepted(current_rows(stored, model.name, node.gpu.product) if stored else [])
    if not accepted:
        return base
    try:
        fitted = calibrate(accepted, model, node, base).figures
    except KitError as error:
        own = "the kit's own" if base.measured else "bounds of the hardware"
        console.tell(f"figures  {own}, because the rows in {stored} give none: {error.message}")
        return base
    known = all(conditions and conditions.started_told for conditions in fitted.measured_conditions().values())
    unknown = "" if known else ", whose conditions are unknown"
    console.tell(f"figures  fitted to {len(accepted)} rows ({accepted[0].basis.value}) of {stored}{unknown}")
    return fitted


def _accepted(rows: list[Row]) -> tuple[Row, ...]:
    return inspect_by_model(rows).accepted
