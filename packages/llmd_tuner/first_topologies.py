"""Topologies for a new stack file (`llmd-oke init`): with the fewest nodes for a load, or the best for given GPUs."""

import math
from itertools import islice

from llmd_base.errors import KitError
from llmd_oke import config
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_oke.catalogue.releases import default_release
from llmd_oke.cli.topology_search import FoundTopologies, FoundTopology, ServingNeeds
from llmd_oke.planning.conditions import deployed_conditions

from llmd_tuner import confidence, search_inputs, workload
from llmd_tuner.confidence import Confidence
from llmd_tuner.ranking import rank
from llmd_tuner.search import search
from llmd_tuner.search_inputs import SearchInputs, Targets

MOST_GPUS = 128
"""Maximum number of GPUs that are searched for a load, as in `tune rank`."""

MOST_TOPOLOGIES = 12
"""Maximum number of topologies that are returned, best first; `init` takes the first one that planning accepts."""


def topologies(needs: ServingNeeds) -> FoundTopologies:
    """Return the topologies that meet the needs, best first.

    For a load, the number of GPUs is doubled until a topology carries it. Forecasts may extrapolate beyond what was
    measured, which the result states.

    Raises:
        KitError: no topology meets the limits (the message says what would have to change), or the catalogue has no
            such model or shape.
    """
    model, shape = search_inputs.known_model(needs.model), search_inputs.known_shape(needs.shape)
    started = deployed_conditions(default_release(), model, config.Engine())
    figures = known_figures(model, shape.gpu)
    load = workload.of_lengths(needs.input_tokens, needs.output_tokens)
    ttft_s, itl_s = (None if limit is None else limit / 1000 for limit in (needs.ttft_ms, needs.itl_ms))
    targets = Targets(ttft_s, itl_s, requests_per_s=needs.requests_per_s)
    doublings = int(math.log2(MOST_GPUS / shape.gpus))
    sizes = [needs.gpus] if needs.gpus else [shape.gpus << power for power in range(doublings + 1)]

    def question_of(gpus: int) -> tuple[SearchInputs, Confidence]:
        asked = search_inputs.question_of(model, shape, figures, load, targets, gpus, started=started)
        return confidence.confine(asked, figures, allow_extrapolation=True, started=started)

    for gpus in sizes:
        question, trust = question_of(gpus)
        best = list(islice(search(question).feasible(), MOST_TOPOLOGIES))
        if best:
            found = [
                FoundTopology(item.topology, item.copies, item.gpus_reserved, item.capacity_per_s) for item in best
            ]
            return FoundTopologies(found, trust.basis, trust.sentence)
    remedies = rank(question_of(sizes[-1])[0], sensitivity=False).remedies
    wanted = _with_options(str(targets).replace(",", " ")) or f"{load} at all"
    remedy = _with_options(f"One of: {'; '.join(remedies)}.") if remedies else "Another model, shape, or more GPUs."
    raise KitError(f"Up to {sizes[-1]} GPUs of {shape.name} don't serve {model.name} with {wanted}.", remedy)


def _with_options(text: str) -> str:
    """Return a text with targets as options of `llmd-oke init`: `--load 45` instead of `qps=45`."""
    for target, option in {"qps=": "--load ", "ttft=": "--ttft ", "itl=": "--itl "}.items():
        text = text.replace(target, option)
    return text
