"""Points of single servers that the tuner has measured, as a recipe of experiments.

Servers only prefill, or only decode. Prompts of a benchmark are never repeated, so that no prefix cache answers them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

import yaml
from llmd_base.errors import KitError
from llmd_bench.deployment import Parallelism
from llmd_oke import catalogue, config
from llmd_oke.catalogue.models import key_value_tokens, state_tokens
from llmd_oke.config import Role
from llmd_oke.values import Entry, required_entry

from llmd_tuner import search_inputs
from llmd_tuner.experiments.recipes import Recipe, RecipeDeployment, RecipeLoad, RehearsalScale
from llmd_tuner.servers import Room
from llmd_tuner.workload import WorkloadClasses, of_lengths

NAME = "tuning"
"""What its runs are stored under."""

FEWEST_SEQUENCES = 2
"""A size whose KV cache holds fewer of the workload's requests is not measured."""

GridName = Literal["adaptive", "full"]


class FullGrid(Entry):
    """Levels of the published method."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]


class AdaptiveGrid(Entry):
    """Levels of a grid with as few as a fit needs.

    Errors are mean absolute errors as shares, on the published points.
    """

    prefill: tuple[int, ...]
    least_decode: int
    decode_error: float
    prefill_error: float
    full_decode_error: float
    full_prefill_error: float


class RehearsedGrid(Entry):
    """Scale at which one machine can rehearse a grid; `requests` of each level, at least."""

    time_scale: float
    requests: int


class Grids(Entry):
    """`values/tuning/grids.yaml`: levels of each grid, and requests of each level."""

    full: FullGrid
    adaptive: AdaptiveGrid
    requests: int
    requests_per_user: int
    rehearsal: RehearsedGrid


@cache
def grids() -> Grids:
    """The kit's own."""
    return required_entry("tuning", "grids", Grids)


def sizes_of_grid(name: GridName, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the tensor parallel sizes that a grid measures: all, or the smallest and the largest."""
    return tuple(sizes) if name == "full" else tuple(sorted({min(sizes), max(sizes)}))


def prefill_levels(name: GridName, most: int) -> tuple[int, ...]:
    """Return the prompts in flight at one server that prefills, of which `most` fit it."""
    levels = grids().full.prefill if name == "full" else grids().adaptive.prefill
    return _at_most(levels, most)


def decode_levels(name: GridName, tensor_parallel_size: int, most: int) -> tuple[int, ...]:
    """Return the sequences in flight at one server that decodes, of which `most` fit it.

    The largest batch is among them, because no forecast goes beyond what was measured.
    """
    if name == "adaptive":
        least = min(grids().adaptive.least_decode, most)
        return tuple(sorted({least, round((least * most) ** 0.5), most}))
    levels = list(grids().full.decode)
    last = levels[-1]
    while levels[-1] * 2 <= last * tensor_parallel_size:
        levels.append(levels[-1] * 2)
    return _at_most((*levels, most), most)


def _at_most(levels: Sequence[int], most: int) -> tuple[int, ...]:
    return tuple(sorted({min(level, most) for level in levels}))


@dataclass(frozen=True)
class MeasuredServers:
    """Servers of a model to measure under a workload, with these vLLM settings."""

    model: catalogue.CatalogueModel
    shape: catalogue.Shape
    workload: WorkloadClasses
    engine: config.Engine
    rehearsed: bool = False
    """Whether they are simulated, so that few requests are enough."""

    def sizes(self, gpus: int) -> tuple[int, ...]:
        """Return the tensor parallel sizes within so many GPUs that have room for the workload."""
        sizes = (size for size in search_inputs.sizes_of(self.model, self.shape) if size <= gpus)
        return tuple(size for size in sizes if self.most_decoding(size) >= FEWEST_SEQUENCES)

    def most_decoding(self, size: int) -> int:
        """Return the sequences that one server decodes at a time: its limit, or what its KV cache holds."""
        return self._room("decode", size).sequences(size, self.workload, aggregated=False)

    def most_prefilling(self, size: int) -> int:
        """Return the prompts that one server holds at a time."""
        return self._room("prefill", size).sequences(
            size, of_lengths(self.workload.longest_input_tokens, 1), aggregated=True
        )

    def _room(self, role: Role, size: int) -> Room:
        engine = self.engine.of_role(role)
        tokens = key_value_tokens(self.model, self.shape, Parallelism(size), engine.gpu_memory_utilization)
        return Room({size: tokens}, engine.max_num_seqs, state_tokens={size: state_tokens(self.model, size)})


def handing_over(engine: config.Engine, release: catalogue.Release, model: catalogue.CatalogueModel) -> config.Engine:
    """Return the settings of servers that hand KV cache over, for servers without a KV connector too.

    Block size and attention backend are the release's for servers that hand over, where `engine` names no other:
    prefill is measured alone, and is to be forecast beside decode.
    """
    started = release.vllm.kv_cache_settings(model, engine, hands_over=True)
    backend = f"--attention-backend={started.attention_backend}"
    named = engine.argument("--attention-backend") is not None
    arguments = engine.extra_args if named else (*engine.extra_args, backend)
    return engine.model_copy(update={"block_size": started.block_size, "extra_args": arguments})


def tuning_recipe(servers: MeasuredServers, grid: GridName, sizes: Sequence[int], gpus: int) -> Recipe:
    """Return the measurements of a grid. `sizes` are those to choose from, within `gpus` GPUs; none for all that fit.

    Raises:
        KitError: a size can't be measured, or none can.
    """
    chosen = _chosen(servers, grid, sizes, gpus)
    prefill = {size: prefill_levels(grid, servers.most_prefilling(size)) for size in chosen}
    decode = {size: decode_levels(grid, size, servers.most_decoding(size)) for size in chosen}
    deployments = [
        *(_deployment(servers, size, "prefill", _name("prefill", prefill, size)) for size in chosen),
        *(_deployment(servers, size, "decode", _name("decode", decode, size)) for size in chosen),
    ]
    listed = ", ".join(f"TP{size}" for size in chosen)
    longest, output_tokens = math.ceil(servers.workload.longest_input_tokens), math.ceil(servers.workload.output_tokens)
    # Lengths of decode loads have the workload's mean context.
    input_tokens = max(1, math.ceil(servers.workload.context_tokens - output_tokens / 2))
    return Recipe(
        description=f"{servers.model.name}: servers that only prefill or only decode, {listed}",
        source="j-pareto, pd-config" if grid == "full" else "",
        model=servers.model.name,
        deployments=tuple(deployments),
        loads=(
            *_loads(servers, "prefill", prefill, longest, 1),
            *_loads(servers, "decode", decode, input_tokens, output_tokens),
        ),
        rehearsal=RehearsalScale(time_scale=grids().rehearsal.time_scale),
    )


def recipe_text(recipe: Recipe) -> str:
    """Return a recipe as the text of a file that `llmd-oke experiment run` takes."""
    document: dict[str, Any] = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    topologies = (str(deployment.topology) for deployment in recipe.deployments)
    for deployment, topology in zip(document["deployments"], topologies, strict=True):
        deployment["topology"] = topology
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _chosen(servers: MeasuredServers, grid: GridName, sizes: Sequence[int], gpus: int) -> tuple[int, ...]:
    possible = servers.sizes(gpus)
    listed = ", ".join(map(str, possible)) or "none"
    if wrong := [str(size) for size in sizes if size not in possible]:
        what = f"{servers.model.name} on {gpus} GPUs of {servers.shape.name} with {servers.workload}"
        raise KitError(f"Tensor parallel size {', '.join(wrong)} can't be measured: {what}.", f"Possible: {listed}.")
    if not possible:
        raise KitError(
            f"No server of {servers.model.name} fits {gpus} GPUs with {servers.workload}.", "Give more GPUs."
        )
    return tuple(sorted(set(sizes))) if sizes else sizes_of_grid(grid, possible)


def _deployment(servers: MeasuredServers, size: int, role: Role, load: str) -> RecipeDeployment:
    """Return a server that works alone, with the settings of its role."""
    topology, subject = config.Topology.model_validate(f"agg-tp{size}-1r"), cast("Any", f"{role}-only")
    return RecipeDeployment(topology=topology, subject=subject, engine=servers.engine.of_role(role), loads=(load,))


def _name(role: str, levels: Mapping[int, tuple[int, ...]], size: int) -> str:
    """Return the name of a size's load: one for all sizes, or one for each where their levels differ."""
    return role if len(set(levels.values())) == 1 else f"{role}-tp{size}"


def _loads(
    servers: MeasuredServers, role: str, levels: Mapping[int, tuple[int, ...]], input_tokens: int, output_tokens: int
) -> list[RecipeLoad]:
    requests = grids().rehearsal.requests if servers.rehearsed else grids().requests
    named = {_name(role, levels, size): concurrencies for size, concurrencies in levels.items()}
    return [
        RecipeLoad(
            name=name,
            arrival="closed",
            concurrencies=concurrencies,
            requests=requests,
            requests_per_user=grids().requests_per_user,
            steady_state=True,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )
        for name, concurrencies in named.items()
    ]
