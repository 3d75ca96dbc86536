"""Questions, rows, tolerances and commands for tests of the tuner."""

import json
from dataclasses import replace
from typing import Any

from llmd_base.row import Basis, Origin, Quantiles, Row
from llmd_bench.deployment import Parallelism
from llmd_oke.catalogue.latency_figures import bound_figures, known_figures
from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.shapes import NodeHardware
from llmd_oke.values import read_yaml, values_folder
from llmd_tuner import search_inputs
from llmd_tuner.cli.tune import app
from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model_of
from llmd_tuner.measurements import PublishedPoints, published_points
from llmd_tuner.search import Candidate, search
from llmd_tuner.search_inputs import SearchInputs, parse_targets
from llmd_tuner.simulation.deployment import Policy, SimulatedDeployment, deployment
from llmd_tuner.workload import parse
from typer.testing import CliRunner, Result

MODEL = search_inputs.known_model("gpt-oss-120b")
SHAPE = search_inputs.known_shape("BM.GPU.MI300X.8")
FIGURES = known_figures(MODEL, SHAPE.gpu)
LATENCY = latency_model_of(FIGURES, MODEL, SHAPE)


ALIKE = {"prefix-affinity": "token-load", "session-affinity": "token-load", "lora-affinity": "prefix"}
"""Router profiles that choose like another one where requests have no prefix, session or adapter in common."""


def bounds_of(model: CatalogueModel, node: NodeHardware = SHAPE) -> LatencyModel:
    """Return the latency model of a model by bounds of the hardware alone."""
    return latency_model_of(bound_figures(model, node.gpu), model, node)


def unloaded_prefill_s(latency: LatencyModel, tokens: int, size: int = 1) -> float:
    """Return the time from the arrival of a prompt at an idle server to its first token, in seconds."""
    return latency.factors.prefill_overhead_s + latency.prefill_s(tokens, 0, size)


def run(*arguments: str) -> Result:
    """Return how a command of `llmd-oke tune` ended."""
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "120"})


def answer_of(*arguments: str) -> Any:
    """Return what a command of `llmd-oke tune` says as JSON."""
    return json.loads(run(*arguments, "--json").stdout)


def published(gpu: str = "MI300X") -> PublishedPoints:
    points = published_points("gpt-oss-120b", gpu)
    assert points is not None
    return points


def tuning_values(name: str) -> Any:
    return read_yaml(values_folder() / "tuning" / f"{name}.yaml")


def deploy(topology: str, *, copies: int = 1, policy: Policy = "queue", **limits: int) -> SimulatedDeployment:
    """Return a deployment of gpt-oss-120b to simulate; `limits` change those of every server."""
    made = deployment(MODEL, SHAPE, topology, copies=copies, policy=policy)
    return replace(made, limits={role: replace(limit, **limits) for role, limit in made.limits.items()})


def question(targets: str = "ttft=2000,itl=25,qps=45", gpus: int = 16, workload: str = "4096/256") -> SearchInputs:
    return search_inputs.question_of(MODEL, SHAPE, FIGURES, parse(workload), parse_targets(targets), gpus)


def unit_of(asked: SearchInputs, name: str) -> Candidate:
    """Return the single unit of a topology or, best first, of a kind of servers such as `p-tp1-d-tp2`."""
    candidates = search(asked).deployments()
    return next(item for item in candidates if name in (item.topology, item.family) and item.copies == 1)


def with_tokens(asked: SearchInputs, tokens: dict[int, int]) -> SearchInputs:
    """Return a question about servers of these tensor parallel sizes alone, with room for so many tokens each."""
    known = asked.choices.memory["decode"]
    memory = {
        Parallelism(size): replace(known[Parallelism(size)], key_value_tokens=room) for size, room in tokens.items()
    }
    choices = asked.choices.among(lambda spread: spread in memory)
    return replace(asked, choices=replace(choices, memory=dict.fromkeys(("prefill", "decode", "aggregated"), memory)))


def row(subject: str = "decode", **changes: object) -> Row:
    fields: dict[str, object] = {
        "subject": subject,
        "basis": Basis.MEASURED,
        "model": "gpt-oss-120b",
        "gpu": "MI300X",
        "origin": Origin(tool="test", file="runs.jsonl", line=7),
        "tensor_parallel_size": 2,
        "gpus_counted": 2,
        "input_tokens": 2,
        "output_tokens": 256,
        "concurrency": 64,
    }
    return Row.model_validate({**fields, **changes})


def server_row(spread: Parallelism, subject: str = "decode", **changes: object) -> Row:
    """Return a row of a single server with this parallelism."""
    told = {"tensor_parallel_size": spread.tensor_parallel_size, "data_parallel_size": spread.data_parallel_size}
    told |= {"expert_parallel": spread.expert_parallel, "nodes": spread.nodes, "gpus_counted": spread.gpus}
    return row(subject, **{**told, **changes})


def steps_row(size: int, batch: int, step_s: float, **changes: object) -> Row:
    """Return a row of a server with this tensor parallel size that decodes `batch` sequences at a time."""
    told = {"tensor_parallel_size": size, "gpus_counted": size, "concurrency": batch}
    return row("decode", **{**told, "tpot_ms": tpot(step_s * 1000), **changes})


def prompts_row(size: int = 2, **changes: object) -> Row:
    """Return a row of a server with this tensor parallel size that computes prompts of 4096 tokens one by one."""
    told = {"tensor_parallel_size": size, "gpus_counted": size, "input_tokens": 4096, "output_tokens": 1}
    return row("prefill", **{**told, "concurrency": 1, **changes})


def tpot(mean_ms: float) -> Quantiles:
    return Quantiles(mean=mean_ms)
