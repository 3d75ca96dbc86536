"""What a rehearsed cluster has of others before its stack comes, and what is said of it."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import Status
from llmd_oke import config, planning
from llmd_oke.rehearsal import foreign
from llmd_oke.rehearsal.nodes.installing import install
from llmd_oke.rehearsal.plugins import KubernetesPlugin
from llmd_oke.rehearsal.simulated import SIMULATED_NODE_SCALING, SIMULATED_SCALING, simulated

STACK = Path(__file__).resolve().parents[4] / "stacks" / "Pulumi.rehearsal.yaml"
SPEC = {"group": "g", "names": {"kind": "K", "plural": "ks"}, "scope": "Namespaced", "versions": []}
DEFINITION = {"metadata": {"name": "ks.g"}, "spec": SPEC}


STAND_IN = KubernetesPlugin("4.30.0")


def planned(scaling: dict[str, Any] | None = None) -> planning.Plan:
    stack = yaml.safe_load(STACK.read_text())["config"]["llmd-oke:stack"]
    if scaling is not None:
        stack["models"][0]["scaling"] = scaling
    return planning.plan(config.validate(stack))


@pytest.fixture
def scaled() -> planning.Plan:
    return planned({"decode": {"minReplicas": 2, "maxReplicas": 6, "requests": 40}})


class Cluster:
    def __init__(self, code: int | None = None) -> None:
        self.code = code
        self.made: list[str] = []

    async def create(self, definition: Any) -> None:
        if self.code is not None:
            raise ApiError(status=Status(code=self.code, message="no"))
        self.made.append(definition.metadata.name)


def test_kedas_definition_is_there_where_something_is_scaled(scaled, monkeypatch):
    monkeypatch.setattr(foreign, "crd_manifests", lambda crds: list(crds.files))
    assert foreign.foreign_definitions(scaled) == ["keda.sh_scaledobjects.yaml"]
    assert foreign.foreign_definitions(planned()) == []


def test_that_nothing_scales_is_told(scaled):
    assert SIMULATED_SCALING in simulated(scaled, STAND_IN)
    assert SIMULATED_SCALING not in simulated(planned(), STAND_IN)


def test_that_nothing_adds_nodes_is_told():
    stack = yaml.safe_load(STACK.with_name("Pulumi.reference.yaml").read_text())["config"]["llmd-oke:stack"]
    assert SIMULATED_NODE_SCALING not in simulated(planning.plan(config.validate(stack)), STAND_IN)
    stack["gpuPools"][0]["scaling"] = {"mode": "cluster-autoscaler", "minSize": 8, "maxSize": 12}
    assert SIMULATED_NODE_SCALING in simulated(planning.plan(config.validate(stack)), STAND_IN)


async def test_definitions_are_made_unless_they_are_there():
    new = Cluster()
    await install(cast("Any", new), [DEFINITION])
    assert new.made == ["ks.g"]
    await install(cast("Any", Cluster(409)), [DEFINITION])


async def test_a_cluster_that_refuses_them_is_told_of():
    with pytest.raises(ApiError):
        await install(cast("Any", Cluster(403)), [DEFINITION])


def test_stacks_without_scaling_keep_the_name_of_what_they_deploy(scaled):
    assert "scaling" not in json.loads(planned().config.model_dump_json(by_alias=True))["models"][0]
    assert planned().config_hash != scaled.config_hash
