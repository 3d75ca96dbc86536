"""Planning what a user wrote: errors of shape and of meaning as one list, with the lines of the stack file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from llmd_oke import catalogue
from llmd_oke.config import StackConfig, locate, read, stack_file, validate
from llmd_oke.errors import Problem, Refused
from llmd_oke.planning import checks
from llmd_oke.planning.plan import Plan
from llmd_oke.planning.planner import plan
from llmd_oke.planning.releases import with_router


def plan_stack_file(project: Path, stack: str, router: str | None = None, *, nodes_pull: bool = False) -> Plan:
    """The plan of a stack's file; `router` is the release whose router runs, where that is not the release's own, and
    `nodes_pull` says that real nodes pull its images, so that those that are gone are problems.

    Raises:
        KitError: there is no such file, or it is not YAML.
        Refused: the stack can't be deployed; carries every problem, with lines.
    """
    try:
        asked = plan_object(read(project, stack), nodes_pull=nodes_pull)
    except Refused as refused:
        raise Refused(locate(refused.problems, stack_file(project, stack))) from refused
    return plan(with_router(asked.config, router)) if router else asked


def plan_object(value: Any, *, nodes_pull: bool = False) -> Plan:
    """The plan of the object under `llmd-oke:stack`; see `plan_stack_file`.

    Raises:
        Refused: the stack can't be deployed; carries every problem.
    """
    try:
        config = validate(value)
    except Refused as refused:
        raise Refused([*refused.problems, *_problems_of_sound_parts(value, refused.problems)]) from refused
    return plan(config, nodes_pull=nodes_pull)


def _problems_of_sound_parts(value: Any, problems: Iterable[Problem]) -> list[Problem]:
    """What is wrong in meaning with those parts whose shape is right. Nothing here may follow from a wrong shape."""
    spoilt = {_part(problem.path) for problem in problems}
    if not isinstance(value, dict):
        return []
    stand_in = _with_stand_ins(cast("dict[str, Any]", value), spoilt)
    return [problem for problem in checks.problems_of_parts(stand_in) if _part(problem.path) not in spoilt]


def _part(path: str) -> str:
    """The part that a path is in: a model or pool of the stack (`models[0]`), or another key at the top."""
    return path.split(".", 1)[0]


def _with_stand_ins(value: dict[str, Any], spoilt: set[str]) -> StackConfig:
    """The object with a harmless stand-in for each spoilt part."""
    pools: list[Any] = value.get("gpuPools", []) if "gpuPools" not in spoilt else []
    models: list[Any] = value.get("models", []) if "models" not in spoilt else []
    sound = [pool for i, pool in enumerate(pools) if f"gpuPools[{i}]" not in spoilt]
    shape = sound[0]["shape"] if sound else catalogue.shape_names()[0]
    stand_in: dict[str, Any] = {
        "cluster": {"mode": "existing", "identifier": "stand-in"},
        "release": value.get("release", catalogue.release_names()[-1])
        if "release" not in spoilt
        else catalogue.release_names()[-1],
        "rdma": value.get("rdma", "sriov-vf") if "rdma" not in spoilt else "none",
        "gpuPools": [pool if f"gpuPools[{i}]" not in spoilt else _pool(i, shape) for i, pool in enumerate(pools)]
        or [_pool(0, shape)],
        "models": [model if f"models[{i}]" not in spoilt else _model(i) for i, model in enumerate(models)]
        or [_model(0)],
    }
    return validate({**stand_in, **_of_cluster(value, spoilt)})


def _of_cluster(value: dict[str, Any], spoilt: set[str]) -> dict[str, Any]:
    """The cluster and what is judged by it; nothing where its own shape, or that of the network in it, is wrong."""
    if not isinstance(value.get("cluster"), dict) or spoilt & {"cluster", "rdma", "layer"}:
        return {}
    kept = {key: value[key] for key in ("cluster", "systemPool", "gpuStack") if key in value and key not in spoilt}
    pools: list[Any] = value.get("cpuPools", []) if "cpuPools" not in spoilt else []
    return {**kept, "cpuPools": [pool for i, pool in enumerate(pools) if f"cpuPools[{i}]" not in spoilt]}


def _pool(i: int, shape: str) -> dict[str, Any]:
    return {"name": f"spoilt-{i}", "shape": shape, "size": 1}


def _model(i: int) -> dict[str, Any]:
    return {
        "model": catalogue.model_names()[0],
        "name": f"spoilt-{i}",
        "topology": "agg-tp1-1r",
        "workload": {"inputTokens": 1, "outputTokens": 1},
    }
