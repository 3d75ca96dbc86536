"""Stack files as objects, with what a test wants to be different."""

from typing import Any

from llmd_oke import config, planning
from llmd_pods.errors import Problem, Refused


def model(topology: Any = "8p-tp1-4d-tp2", **changes: Any) -> dict[str, Any]:
    return {
        "model": "gpt-oss-120b",
        "topology": topology,
        "workload": {"inputTokens": 4096, "outputTokens": 256},
        **changes,
    }


def stack(*models: dict[str, Any], nodes: int = 9, **changes: Any) -> dict[str, Any]:
    return {
        "cluster": {"mode": "existing", "identifier": "here"},
        "gpuPools": [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": nodes}],
        "release": "llm-d-0.9.0",
        "models": list(models) or [model()],
        **changes,
    }


def plan(*models: dict[str, Any], nodes: int = 9, **changes: Any) -> planning.Plan:
    return planning.plan(config.validate(stack(*models, nodes=nodes, **changes)))


def problems(*models: dict[str, Any], nodes: int = 9, **changes: Any) -> list[Problem]:
    try:
        plan(*models, nodes=nodes, **changes)
    except Refused as refused:
        return list(refused.problems)
    return []
