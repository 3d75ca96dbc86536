"""Grids of loads under which the tuner measures single servers, as a recipe of experiments.

Each server only prefills, or only decodes. Prompts are never repeated, so that no prefix cache answers them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import yaml
from llmd_base.errors import KitError
from llmd_bench.deployment import Parallelism, aggregated_short_form, parse_server_kind
from llmd_oke import catalogue, config
from llmd_oke.config import Role
from llmd_oke.planning.planned_model import memory
from llmd_oke.planning.server_choices import divided_spreads
from llmd_oke.values import Entry, entry_reader

from llmd_tuner.experiments.recipes import Recipe, RecipeDeployment, RecipeLoad, RehearsalScale
from llmd_tuner.servers import Room
from llmd_tuner.workload import WorkloadClasses, of_lengths

NAME = "tuning"
"""Name under which runs that measure single servers are stored."""

FEWEST_SEQUENCES = 2
"""Minimum number of the workload's requests that a rank's KV cache must hold; servers with less room are not measured.
"""

GridName = Literal["adaptive", "full"]


class FullGrid(Entry):
    """Numbers of concurrent requests at which the published method measures each rank of prefill and of decode
    servers.
    """

    prefill: tuple[int, ...]
    decode: tuple[int, ...]


class AdaptiveGrid(Entry):
    """Smallest grid of concurrent requests from which latency models are fitted: the numbers for prefill, and the least
    number for decode. Errors are mean absolute relative errors (0.1 is 10 %) of the published points: for a fit to this
    grid at all other points, and (`full_…`) for a fit to all points at these points themselves.
    """

    prefill: tuple[int, ...]
    least_decode: int
    decode_error: float
    prefill_error: float
    full_decode_error: float
    full_prefill_error: float


class RehearsedGrid(Entry):
    """Settings with which one machine can rehearse a grid: `time_scale` is wall seconds for each simulated second,
    `requests` the minimum number of requests of each level of concurrency.
    """

    time_scale: float
    requests: int


class Grids(Entry):
    """Content of `values/tuning/grids.yaml`: levels of concurrency of each grid, and numbers of requests of
    each level.
    """

    full: FullGrid
    adaptive: AdaptiveGrid
    requests: int
    requests_per_user: int
    rehearsal: RehearsedGrid


grids = entry_reader("tuning", "grids", Grids)
"""Return the grids of loads under which single servers are measured, from `values/tuning/grids.yaml`."""


def kinds_of_grid(name: GridName, kinds: Sequence[Parallelism]) -> tuple[Parallelism, ...]:
    """Return the kinds of servers that a grid measures: all of `kinds`, which are ordered by number of GPUs, or for the
    adaptive grid only the smallest and the largest.
    """
    return tuple(kinds) if name == "full" else tuple(dict.fromkeys((kinds[0], kinds[-1])))


def prefill_levels(name: GridName, most: int) -> tuple[int, ...]:
    """Return the numbers of concurrent prompts to measure on each rank of a prefill server that has room for `most`."""
    levels = grids().full.prefill if name == "full" else grids().adaptive.prefill
    return _at_most(levels, most)


def decode_levels(name: GridName, tensor_parallel_size: int, most: int) -> tuple[int, ...]:
    """Return the numbers of concurrent sequences to measure on each rank of a decode server that has room for `most`.
    The largest batch is always included, because no forecast goes beyond what was measured.
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
    """Servers that are to be measured: their model, workload and vLLM settings."""

    model: catalogue.CatalogueModel
    shape: catalogue.Shape
    workload: WorkloadClasses
    engine: config.Engine
    rehearsed: bool = False
    """Whether the servers are simulated in a rehearsal, so that few requests are enough."""

    def kinds(self, gpus: int) -> tuple[Parallelism, ...]:
        """Return the kinds of servers (tensor and data parallel sizes) with at most `gpus` GPUs that have room for the
        workload, ordered by number of GPUs.
        """
        kinds = divided_spreads(self.model, self.shape.gpus, gpus)
        return tuple(kind for kind in kinds if self.most_decoding(kind) >= FEWEST_SEQUENCES)

    def kind(self, text: str) -> Parallelism:
        """Parse a kind of server: a tensor parallel size alone, with the model's default placement of experts, or a
        form such as `tp1dp8ep`.

        Raises:
            KitError: the text has another form.
        """
        try:
            spread = Parallelism(int(text)) if text.isdigit() else parse_server_kind(text)
        except ValueError as error:
            raise KitError(
                f"{text!r} is no kind of server.", "Accepted: 8, tp8, tp8ep, tp1dp8ep and the like."
            ) from error
        if text.isdigit() and spread.gpus > 1:
            spread = replace(spread, expert_parallel=self.model.expert_parallel)
        return spread.over_nodes(self.shape.gpus) or spread

    def alone(self, kind: Parallelism) -> bool:
        """Tell whether a tensor parallel size alone describes a kind of server: it has one data parallel rank and the
        model's default placement of experts.
        """
        return kind.data_parallel_size == 1 and kind.expert_parallel == (self.model.expert_parallel and kind.gpus > 1)

    def most_decoding(self, kind: Parallelism) -> int:
        """Return the maximum number of sequences that each rank of a server of this kind decodes at a time: the
        configured limit or the number that its KV cache holds, whichever is less.
        """
        return self._sequences("decode", kind, self.workload, aggregated=False)

    def most_prefilling(self, kind: Parallelism) -> int:
        """Return the maximum number of prompts that each rank of a server of this kind prefills at a time: the
        configured limit or the number that its KV cache holds, whichever is less.
        """
        return self._sequences("prefill", kind, of_lengths(self.workload.longest_input_tokens, 1), aggregated=True)

    def _sequences(self, role: Role, kind: Parallelism, workload: WorkloadClasses, *, aggregated: bool) -> int:
        engine = self.engine.of_role(role)
        room = memory(self.model, self.shape, kind, engine.gpu_memory_utilization)
        return Room(engine.max_num_seqs).sequences(room, workload, aggregated=aggregated)


def handing_over(engine: config.Engine, release: catalogue.Release, model: catalogue.CatalogueModel) -> config.Engine:
    """Return vLLM settings for servers that are measured alone, equal to those of servers that transfer KV cache.

    Block size and attention backend are the release's for servers with a KV connector unless `engine` sets them:
    prefill is measured alone but forecast together with decode.
    """
    started = release.vllm.kv_cache_settings(model, engine, hands_over=True)
    backend = f"--attention-backend={started.attention_backend}"
    named = engine.argument("--attention-backend") is not None
    arguments = engine.extra_args if named else (*engine.extra_args, backend)
    return engine.model_copy(update={"block_size": started.block_size, "extra_args": arguments})


def tuning_recipe(servers: MeasuredServers, grid: GridName, kinds: Sequence[Parallelism], gpus: int) -> Recipe:
    """Return the recipe of all measurements of a grid. `kinds` are the kinds of servers to measure, within `gpus` GPUs;
    if empty, the grid chooses among those with room for the workload.

    Raises:
        KitError: a kind of server can't be measured, or none can.
    """
    chosen = _chosen(servers, grid, kinds, gpus)
    prefill = {kind: _of_ranks(kind, prefill_levels(grid, servers.most_prefilling(kind))) for kind in chosen}
    decode = {
        kind: _of_ranks(kind, decode_levels(grid, kind.tensor_parallel_size, servers.most_decoding(kind)))
        for kind in chosen
    }
    deployments = [
        *(_deployment(servers, kind, "prefill", _name("prefill", prefill, kind)) for kind in chosen),
        *(_deployment(servers, kind, "decode", _name("decode", decode, kind)) for kind in chosen),
    ]
    listed = ", ".join(kind.kind.upper() for kind in chosen)
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
    """Return a recipe as the content of a file for `llmd-oke experiment run`."""
    document: dict[str, Any] = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    topologies = (str(deployment.topology) for deployment in recipe.deployments)
    for deployment, topology in zip(document["deployments"], topologies, strict=True):
        deployment["topology"] = topology
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _of_ranks(kind: Parallelism, levels: Sequence[int]) -> tuple[int, ...]:
    """Return the requests in flight at a server all of whose ranks have as many."""
    return tuple(level * kind.data_parallel_size for level in levels)


def _chosen(
    servers: MeasuredServers, grid: GridName, kinds: Sequence[Parallelism], gpus: int
) -> tuple[Parallelism, ...]:
    possible = servers.kinds(gpus)
    if wrong := [kind.kind for kind in kinds if kind not in possible]:
        what = f"{servers.model.name} on {gpus} GPUs of {servers.shape.name} with {servers.workload}"
        listed = ", ".join(kind.kind for kind in possible) or "none"
        raise KitError(f"Servers {', '.join(wrong)} can't be measured: {what}.", f"Possible: {listed}.")
    if not possible:
        raise KitError(
            f"No server of {servers.model.name} fits {gpus} GPUs with {servers.workload}.", "Give more GPUs."
        )
    if kinds:
        return tuple(kind for kind in possible if kind in kinds)
    return kinds_of_grid(grid, list(filter(servers.alone, possible)) or possible)


def _deployment(servers: MeasuredServers, kind: Parallelism, role: Role, load: str) -> RecipeDeployment:
    """Return a server that works alone, with the settings of its role."""
    topology = config.Topology.model_validate(aggregated_short_form(kind, 1))
    subject = cast("Any", f"{role}-only")
    return RecipeDeployment(topology=topology, subject=subject, engine=servers.engine.of_role(role), loads=(load,))


def _name(role: str, levels: Mapping[Parallelism, tuple[int, ...]], kind: Parallelism) -> str:
    """Return the name of a kind's load: one for all kinds, or one for each where their levels differ."""
    return role if len(set(levels.values())) == 1 else f"{role}-{kind}"


def _loads(
    servers: MeasuredServers,
    role: str,
    levels: Mapping[Parallelism, tuple[int, ...]],
    input_tokens: int,
    output_tokens: int,
) -> list[RecipeLoad]:
    requests = grids().rehearsal.requests if servers.rehearsed else grids().requests
    named = {_name(role, levels, kind): concurrencies for kind, concurrencies in levels.items()}
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
