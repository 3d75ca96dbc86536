"""Stack files as objects, on disk and planned, with what a test wants to be different."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from llmd_base.errors import InvalidStack, Problem
from llmd_oke import catalogue, config, planning
from llmd_oke.values import read_yaml

StackObject: TypeAlias = dict[str, Any]
"""A stack or a part of one, as YAML has it."""

PROJECT = Path(__file__).resolve().parents[1]
COMPARTMENT = "ocid1.compartment.oc1..cluster"
TENANCY = "ocid1.tenancy.oc1..tenancy"
DOMAIN = "Uocm:US-ASHBURN-AD-1"


def ocid(kind: str, name: str = "there") -> str:
    """The OCID of something in us-ashburn-1."""
    return f"ocid1.{kind}.oc1.iad.{name}"


def model(topology: object = "8p-tp1-4d-tp2", **changes: object) -> StackObject:
    """A model of 4,096 tokens in and 256 out."""
    workload = {"inputTokens": 4096, "outputTokens": 256}
    return {"model": "gpt-oss-120b", "topology": topology, "workload": workload, **changes}


def existing_cluster(**changes: object) -> StackObject:
    """A cluster that is there already."""
    return {"mode": "existing", "identifier": "here", **changes}


def existing_pool(**changes: object) -> StackObject:
    """Nine nodes with 72 GPUs that are there already."""
    return {"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 9, **changes}


def stack(*models: StackObject, nodes: int = 9, **changes: object) -> StackObject:
    """A stack on a cluster that is there already."""
    return {
        "cluster": existing_cluster(),
        "gpuPools": [existing_pool(size=nodes)],
        "release": "llm-d-0.9.0",
        "models": list(models) or [model()],
        **changes,
    }


def created_cluster(**changes: object) -> StackObject:
    """A cluster for the stack to create."""
    return {
        "mode": "create",
        "name": "prod",
        "region": "us-ashburn-1",
        "compartmentId": COMPARTMENT,
        "tenancyId": TENANCY,
        "kubernetesVersion": "v1.34.2",
        **changes,
    }


def created_pool(**changes: object) -> StackObject:
    """Nine nodes for the stack to create."""
    return existing_pool(**{"availabilityDomain": DOMAIN, "image": {"ocid": ocid("image")}, **changes})


def created_stack(*pools: StackObject, cluster: Mapping[str, object] | None = None, **changes: object) -> StackObject:
    """A stack that creates its cluster; `cluster` are changes of that."""
    parts = {"cluster": created_cluster(**(cluster or {})), "gpuPools": list(pools) or [created_pool()]}
    return {**stack(), **parts, **changes}


def cluster_layer(*pools: StackObject, cluster: Mapping[str, object] | None = None, **changes: object) -> StackObject:
    """The same without models."""
    result = created_stack(*pools, cluster=cluster, layer="cluster", **changes)
    del result["models"]
    return result


def document(stack: Mapping[str, object], settings: Mapping[str, object] | None = None, **keys: object) -> StackObject:
    """The whole file: a stack, further settings of its config, and further keys beside the config."""
    return {"config": {"llmd-oke:stack": stack, **(settings or {})}, **keys}


def write(
    project: Path, name: str, stack: Mapping[str, object], settings: Mapping[str, object] | None = None, **keys: object
) -> Path:
    """Write `document` as a stack file of a project."""
    file = project / "stacks" / f"Pulumi.{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(document(stack, settings, **keys), sort_keys=False))
    return file


def read(name: str) -> StackObject:
    """The stack of one of the kit's own files."""
    return read_yaml(PROJECT / "stacks" / f"Pulumi.{name}.yaml")["config"]["llmd-oke:stack"]


def plan(*models: StackObject, nodes: int = 9, **changes: object) -> planning.Plan:
    """The plan of `stack`."""
    return planning.plan(config.validate(stack(*models, nodes=nodes, **changes)))


def problems(*models: StackObject, nodes: int = 9, **changes: object) -> list[Problem]:
    """Return what is wrong with `stack`."""
    try:
        plan(*models, nodes=nodes, **changes)
    except InvalidStack as refused:
        return list(refused.problems)
    return []


def paths(*models: StackObject, nodes: int = 9, **changes: object) -> list[str]:
    """Return where something is wrong with `stack`."""
    return [problem.path for problem in problems(*models, nodes=nodes, **changes)]


def known_model(name: str) -> catalogue.CatalogueModel:
    """The catalogue's entry of a model, which must be there."""
    entry = catalogue.model(name)
    assert entry is not None
    return entry


def known_shape(name: str = "BM.GPU.MI300X.8") -> catalogue.Shape:
    """The catalogue's entry of a shape, which must be there."""
    entry = catalogue.shape(name)
    assert entry is not None
    return entry


def known_release(name: str) -> catalogue.Release:
    """The catalogue's entry of a release, which must be there."""
    entry = catalogue.release(name)
    assert entry is not None
    return entry
