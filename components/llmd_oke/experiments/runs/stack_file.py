"""The stack that experiments are deployed with: derived from a stack of the user's, with models of its own.

It has the same cluster, release and nodes, a namespace of its own, and goes when the experiment is over.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmd_oke import config
from llmd_oke.config import CONFIG_KEY, CreateCluster, StackConfig
from llmd_oke.config.document import read
from llmd_oke.config.pulumi_yaml import text_of

SUFFIX = "-experiment"
_HEADER = "# Made by `llmd-oke experiment run`, which removes it when the experiment is over.\n"


def name_of(stack: str) -> str:
    """The stack that the experiments of a stack are deployed with."""
    return f"{stack}{SUFFIX}"


def derive(base: StackConfig, stack: str, models: Sequence[config.Model]) -> dict[str, Any]:
    """The object of a stack that serves `models` in the cluster of the stack `stack`, whose config is `base`."""
    return {
        "layer": "serving",
        **_cluster(base, stack),
        "gpuPools": [{"name": pool.name, "shape": pool.shape, "size": pool.size} for pool in base.gpu_pools],
        **_common(base, models),
        "storage": _dump(base.storage),
    }


def derive_rehearsed(base: StackConfig, stack: str, models: Sequence[config.Model], nodes: int) -> dict[str, Any]:
    """The same for a rehearsal: a world of its own, with so many nodes of the stack's shape."""
    pool = base.gpu_pools[0]
    storage = {} if isinstance(base.cluster, CreateCluster) else {"storage": _dump(base.storage)}
    return {
        "layer": "all",
        "cluster": {"mode": "existing", "identifier": name_of(stack)},
        "gpuPools": [{"name": pool.name, "shape": pool.shape, "size": nodes}],
        **_common(base, models),
        **storage,
    }


def _cluster(base: StackConfig, stack: str) -> dict[str, Any]:
    if isinstance(base.cluster, CreateCluster):
        # The file and object stores of states call every organization so; elsewhere the stack's full name is given.
        full = stack if stack.count("/") == 2 else f"organization/llmd-oke/{stack}"
        return {"clusterStack": full}
    return {"cluster": _dump(base.cluster)} if base.cluster else {"clusterStack": base.cluster_stack}


def _common(base: StackConfig, models: Sequence[config.Model]) -> dict[str, Any]:
    return {
        "rdma": base.rdma,
        "release": base.release,
        **({"override": base.override.model_dump(by_alias=True, exclude_none=True)} if base.override else {}),
        "namespace": f"{base.namespace[: 36 - len(SUFFIX)]}{SUFFIX}",
        "models": [{**_dump(model), "topology": str(model.topology)} for model in models],
        "smoke": {"where": "client"},  # the program that measures evaluates what changes answers
    }


def _dump(part: config.Part) -> dict[str, Any]:
    return part.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)


def write(project: Path, stack: str, value: dict[str, Any]) -> Path:
    """Writes the derived stack's file beside the stack's own, whose other keys and secrets it takes along."""
    document: dict[str, Any] = read(config.stack_file(project, stack)).value
    text = text_of({**document, "config": {**document["config"], CONFIG_KEY: value}})
    path = config.stack_file(project, name_of(stack))
    new = path.with_suffix(".new")
    new.write_text(_HEADER + text, encoding="utf-8")
    new.replace(path)
    return path


def remove(project: Path, stack: str) -> None:
    """Removes the derived stack's file."""
    config.stack_file(project, name_of(stack)).unlink(missing_ok=True)
