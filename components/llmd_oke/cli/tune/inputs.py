"""What the commands of `tune` ask for: options, and the question that they make together."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke import config, planning
from llmd_oke.catalogue import Model, Node, Shape, gpu_names
from llmd_oke.catalogue.releases import newest_release
from llmd_oke.cli import console, options
from llmd_oke.cli.tune import fitted
from llmd_oke.config.model import RouterProfileName
from llmd_oke.errors import KitError
from llmd_oke.experiments.tuner.rows import rows_file
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.tuning.answers import confidence
from llmd_oke.tuning.answers.confidence import Confidence
from llmd_oke.tuning.search import asking
from llmd_oke.tuning.search.question import Question, Targets, joined, parse_targets
from llmd_oke.tuning.servers import workload
from llmd_oke.tuning.servers.conditions import AS_VLLM, Started, started_with
from llmd_oke.tuning.servers.workload import Workload

MaybeStack = Annotated[
    str | None, typer.Option("--stack", "-s", help="Take model, workload, targets and GPUs from this stack.")
]
Name = Annotated[str | None, typer.Option("--name", help="Which model of the stack, where it has several.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Model of the catalogue, without a stack.")]
ShapeName = Annotated[
    str | None, typer.Option("--shape", help="Shape of the GPU nodes, without a stack; BM.GPU.MI300X.8 if left out.")
]
GpuName = Annotated[
    str | None, typer.Option("--gpu", help=f"GPU product instead of a shape: {', '.join(gpu_names())}.")
]
Slo = Annotated[str, typer.Option("--slo", help="Targets, with commas: ttft=MS, itl=MS, e2e=MS (means), qps=RATE.")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="GPUs to search; those that the stack has.", min=1, max=128)]
WorkloadText = Annotated[
    str | None,
    typer.Option("--workload", help="Lengths, ISL/OSL: 4096/256, or several with weights: 7:4096/256,3:512/128."),
]
Trace = Annotated[
    Path | None,
    typer.Option(help="Lengths from a trace: JSON Lines or CSV with input_tokens, output_tokens.", dir_okay=False),
]
PrefixHits = Annotated[
    float,
    typer.Option(help="Share of prompt tokens that the prefix caches of prefill answer, as watched.", min=0, max=1),
]
Figures = Annotated[
    Path | None,
    typer.Option(
        help="Latency figures of `tune fit`. If left out, fitted to the rows of `tune run`; else the kit's own.",
        dir_okay=False,
    ),
]
Measurements = Annotated[
    list[Path] | None, typer.Option("--measurements", help="Rows to fit instead; several times.", dir_okay=False)
]
MaxNumSeqs = Annotated[int, typer.Option(help="Largest batch to consider (vLLM's --max-num-seqs).", min=1, max=4096)]
AllowExtrapolation = Annotated[
    bool,
    typer.Option("--allow-extrapolation", help="Go beyond what the latency figures were fitted to; results say so."),
]

DEFAULT_SHAPE = "BM.GPU.MI300X.8"
STACK_OR_GPU = "Leave out --shape and --gpu, or name --model instead of --stack."
DEFAULT_WORKLOAD = "4096/256"
DEFAULT_GPUS = 16
QUICK_GPUS = 32
"""Deployments of so many are searched within a second or two."""


@dataclass(frozen=True)
class Where:
    """The options that say of what a search is: a stack, or a model on a shape or GPU."""

    project: options.Project = options.HERE
    stack: MaybeStack = None
    model: ModelName = None
    shape: ShapeName = None
    gpu: GpuName = None


@dataclass(frozen=True)
class Search:
    """The options of every search."""

    name: Name = None
    slo: Slo = ""
    gpus: Gpus = None
    workload: WorkloadText = None
    trace: Trace = None
    prefix_hits: PrefixHits = 0.0
    figures: Figures = None
    max_num_seqs: MaxNumSeqs = 256
    allow_extrapolation: AllowExtrapolation = False
    measurements: Measurements = None


@dataclass(frozen=True)
class Inputs:
    """What a search goes by, all of it known and checked."""

    model: Model
    node: Node
    question: Question
    confidence: Confidence
    started: Started


@dataclass(frozen=True)
class _Known:
    """What a stack, or its absence, says about a model."""

    model: Model
    node: Node
    workload: Workload
    targets: Targets
    gpus: int
    gpu_memory_utilization: float = 0.95
    started: Started = AS_VLLM
    profile: RouterProfileName = "token-load"


def inputs(where: Where, asked: Search) -> Inputs:
    """The question that the options make.

    Raises:
        KitError: they contradict each other, name what is not there, or lead beyond the latency figures.
    """
    if (where.stack is None) == (where.model is None):
        raise KitError("Either a stack or a model has to be named.", "--stack S, or --model M.")
    if asked.workload and asked.trace:
        raise KitError("A workload and a trace exclude each other.", "Give --workload or --trace.")
    known = _of_stack(where, asked) if where.stack else _of_model(where, asked)
    kept = rows_file(where.project, where.stack) if where.stack else None
    figures = fitted.best_figures(asked.figures, asked.measurements or (), kept, known.model, known.node)
    question = asking.question_of(
        known.model,
        known.node,
        figures,
        replace(known.workload, prefix_cache_hit_share=asked.prefix_hits),
        known.targets,
        asked.gpus or known.gpus,
        max_num_seqs=asked.max_num_seqs,
        gpu_memory_utilization=known.gpu_memory_utilization,
        started=known.started,
        profile=known.profile,
    )
    question, trust = confidence.confined(question, figures, asked.allow_extrapolation, known.started)
    return Inputs(known.model, known.node, question, trust, known.started)


def announce(known: Inputs) -> None:
    """Says that a search begins, where it takes seconds."""
    gpus = known.question.hardware.gpus
    if gpus > QUICK_GPUS:
        console.progress().step(f"searching the deployments of up to {gpus} GPUs")


def named_node(shape: str | None, gpu: str | None) -> Node | None:
    """The nodes that a shape or a GPU names, None where neither is given.

    Raises:
        KitError: both are given, or the catalogue has no such shape or GPU.
    """
    if shape and gpu:
        message = "A shape and a GPU exclude each other: a shape says which GPU it has."
        raise KitError(message, f"Give --shape {shape} or --gpu {gpu}.")
    if shape:
        return asking.known_shape(shape)
    return asking.known_gpu(gpu) if gpu else None


def model_index(models: tuple[config.Model, ...], name: str | None) -> int:
    """The place of a model in a stack file.

    Raises:
        KitError: there is no such model, or there are several and no name says which.
    """
    names = [model.object_name for model in models]
    if name is None and len(names) == 1:
        return 0
    if name in names:
        return names.index(name)
    found = "The stack has several models." if name is None else f"The stack has no model {name!r}."
    raise KitError(found, f"--name is one of: {', '.join(names) or 'none'}.")


def _of_model(where: Where, asked: Search) -> _Known:
    model = asking.known_model(where.model or "")
    node = named_node(where.shape, where.gpu) or asking.known_shape(DEFAULT_SHAPE)
    load = _workload(asked) or workload.parse(DEFAULT_WORKLOAD)
    started = started_with(newest_release(), model, config.Engine()) if isinstance(node, Shape) else AS_VLLM
    return _Known(model, node, load, _targets(asked, load, Targets()), DEFAULT_GPUS, started=started)


def _of_stack(where: Where, asked: Search) -> _Known:
    if where.shape or where.gpu:
        raise KitError("A stack says itself which GPUs it has.", STACK_OR_GPU)
    plan = planning.plan_stack_file(where.project, where.stack or "")
    chosen = plan.models[model_index(plan.config.models, asked.name)]
    load = _workload(asked) or workload.of_lengths(chosen.workload.input_tokens, chosen.workload.output_tokens)
    return _Known(
        chosen.model,
        plan.pools[0].shape,
        load,
        _targets(asked, load, _targets_of(chosen)),
        _gpus_for(plan, chosen),
        chosen.engine.gpu_memory_utilization,
        started_with(plan.release, chosen.model, chosen.engine),
        chosen.profile,
    )


def _gpus_for(plan: Plan, model: ModelPlan) -> int:
    """The GPUs that the model has, and those that none has."""
    return model.gpus + plan.gpus - plan.used_gpus


def _targets_of(model: ModelPlan) -> Targets:
    if model.slo is None:
        return Targets()
    ttft_ms, itl_ms = model.slo.ttft_ms, model.slo.itl_ms
    return Targets(ttft_s=ttft_ms and ttft_ms / 1000, itl_s=itl_ms and itl_ms / 1000)


def _targets(asked: Search, load: Workload, others: Targets) -> Targets:
    """What the command line says goes before the stack file, and that before the trace's own rate."""
    return joined(joined(parse_targets(asked.slo), others), Targets(requests_per_s=load.requests_per_s))


def _workload(asked: Search) -> Workload | None:
    if asked.trace:
        return workload.read_trace(asked.trace)
    return workload.parse(asked.workload) if asked.workload else None
