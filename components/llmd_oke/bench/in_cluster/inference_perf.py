"""The configuration of inference-perf for a load of ours: random prompts of fixed lengths, constant rate, streaming.

Keys are those of kubernetes-sigs/inference-perf, config.yml. Releases up to 0.6 take unknown keys, 0.7 refuses them, so
that only keys that all of them know are written. A fixed length is told twice, as `type: fixed` and as a normal
distribution without deviation, which is how releases before `type` read it.
"""

from dataclasses import dataclass
from typing import Any

from llmd_oke.bench.workload.lengths import Fixed, Length
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate, LoadShape, PoissonRate
from llmd_oke.errors import KitError

SPARE = 1.1
"""Prompts are made beforehand: a tenth more than the rate asks for."""


@dataclass(frozen=True)
class ToolLoad:
    """One stage of load for a tool: `duration_s` for a rate, `requests` for a closed loop. Times are wall time."""

    base_url: str
    model: str
    shape: LoadShape
    input_tokens: Length
    output_tokens: Length
    duration_s: float | None = None
    requests: int | None = None
    seed: int = 0


def config(load: ToolLoad, *, results: str, tokenizer: str, workers: int, worker_concurrency: int) -> dict[str, Any]:
    """The configuration file's content; results are written below the folder `results`.

    Raises:
        KitError: inference-perf has no such load.
    """
    count = _count(load)
    return {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": _distribution(load.input_tokens, count),
            "output_distribution": _distribution(load.output_tokens, count),
        },
        "load": {
            **_load(load),
            "num_workers": workers,
            "worker_max_concurrency": worker_concurrency,
            "base_seed": load.seed,
        },
        "server": {"type": "vllm", "model_name": load.model, "base_url": load.base_url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": tokenizer},
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": False}},
        "storage": {"local_storage": {"path": results}},
    }


def _load(load: ToolLoad) -> dict[str, Any]:
    match load.shape:
        case ConstantRate(rate):
            return {"type": "constant", "stages": [{"rate": rate, "duration": _duration(load)}]}
        case PoissonRate(rate, _):
            return {"type": "poisson", "stages": [{"rate": rate, "duration": _duration(load)}]}
        case ClosedLoop(users):
            return {"type": "concurrent", "stages": [{"concurrency_level": users, "num_requests": _requests(load)}]}
        case _:
            raise KitError(f"inference-perf is not given {load.shape} here.", "Give closed:…, constant:… or poisson:….")


def _count(load: ToolLoad) -> int:
    if isinstance(load.shape, ConstantRate | PoissonRate):
        return round(SPARE * load.shape.requests_per_s * _duration(load)) + 1
    return _requests(load)


def _duration(load: ToolLoad) -> int:
    if load.duration_s is None:
        raise KitError("inference-perf's rates run for a time.", "Give --duration.")
    return round(load.duration_s)


def _requests(load: ToolLoad) -> int:
    if load.requests is None:
        raise KitError("inference-perf's closed loops end after a number of requests.", "Give --requests.")
    return load.requests


def _distribution(length: Length, count: int) -> dict[str, Any]:
    if not isinstance(length, Fixed):
        raise KitError("inference-perf is given fixed lengths here.", "Give a number of tokens.")
    tokens = length.tokens
    return {"type": "fixed", "min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": count}
