"""Pools whose number of nodes is the cluster autoscaler's."""

from typing import Any

import pytest
from created_stacks import created, gpu_pool, ocid, refusals, validated
from llmd_oke import planning
from llmd_oke.planning.cost import costs
from llmd_oke.planning.iam import iam_needs
from llmd_oke.planning.network import network_pools
from llmd_oke.planning.node_scaling import (
    autoscaled_pools,
    autoscaler_add_on,
    autoscaler_nodes,
    awaited_nodes,
    node_scaling_problems,
)
from stacks_for_tests import model, plan, problems

SCALED = {"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 9}
GROWING = model("8p-tp1-4d-tp2", scaling={"decode": {"minReplicas": 2, "maxReplicas": 12, "requests": 77}})


def pool(size: int = 2, **changes: Any) -> dict[str, Any]:
    return gpu_pool(size=size, **{"scaling": SCALED, **changes})


def existing_pool(size: int, scaling: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": size, "scaling": scaling}]


@pytest.mark.parametrize("launch", ["managed-compute-cluster", "plain"])
def test_node_pools_of_oke_can_be_scaled(launch: str):
    one_node = model("2p-tp1-1d-tp2")
    changes: dict[str, Any] = {"rdma": "none" if launch == "plain" else "sriov-vf", "models": [one_node]}
    assert refusals(pool(launch=launch), stack_changes=changes) == {}


@pytest.mark.parametrize("launch", ["cluster-network", "compute-cluster-instances"])
def test_self_managed_nodes_can_not_be_scaled(launch: str):
    found = refusals(pool(launch=launch))
    assert list(found) == ["gpuPools[0].scaling.mode"]
    assert "accepted: mode: fixed, or launch: managed-compute-cluster or plain" in found["gpuPools[0].scaling.mode"]


def test_a_pool_that_is_there_already_is_not_changed():
    made = pool(poolId=ocid("nodepool"))
    assert "nothing of it is changed" in refusals(made)["gpuPools[0].scaling.mode"]


@pytest.mark.parametrize(("size", "key"), [(2, "minSize"), (10, "maxSize")])
def test_a_pool_starts_within_its_limits(size: int, key: str):
    scaling = {**SCALED, "minSize": 3, "maxSize": 9}
    assert list(refusals(pool(size, scaling=scaling))) == [f"gpuPools[0].scaling.{key}"]


def test_limits_of_cpu_pools_are_judged_too():
    more = {"name": "more", "size": 1, "scaling": SCALED}
    assert list(refusals(stack_changes={"cpuPools": [more]})) == ["cpuPools[0].scaling.minSize"]


def test_the_most_servers_need_room_on_the_most_nodes_only():
    few, many = {**SCALED, "maxSize": 3}, {**SCALED, "maxSize": 4}
    assert problems(GROWING, gpuPools=existing_pool(2, many)) == []
    (problem,) = problems(GROWING, gpuPools=existing_pool(2, few))
    assert problem.path == "models[0].scaling.decode.maxReplicas"


def test_what_is_started_with_needs_room_on_the_nodes_that_are_there_at_first():
    (problem,) = problems(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(1, {**SCALED, "minSize": 1}))
    assert (problem.path, problem.value) == ("gpuPools[0].size", 1)
    assert problem.accepted.startswith("at least 2,")


def test_models_that_not_even_the_most_nodes_hold_are_told_of_the_limit():
    (problem,) = problems(model("8p-tp1-8d-tp2"), gpuPools=existing_pool(1, {**SCALED, "minSize": 1, "maxSize": 2}))
    assert (problem.path, problem.value) == ("gpuPools[0].scaling.maxSize", 2)
    assert problem.accepted.startswith("at least 3,")


def test_updates_take_no_room_on_nodes_that_may_not_be_there():
    scaled = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(2, SCALED))
    fixed = plan(model("8p-tp1-4d-tp2"), nodes=9)
    assert {role.rollout.max_surge for role in scaled.models[0].units[0].roles} == {0}
    assert all(role.rollout.max_surge for role in fixed.models[0].units[0].roles)


def test_nodes_that_the_autoscaler_would_take_are_no_idle_nodes():
    assert plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(2, SCALED)).idle_nodes == []
    stays = {**SCALED, "minSize": 4}
    assert len(plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(4, stays)).idle_nodes) == 2


def test_the_nodes_at_first_are_as_many_as_the_file_says():
    made = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(2, SCALED))
    assert (len(made.nodes_at_first), len(made.nodes)) == (2, 9)


def first_nodes(topology: str, scaling: dict[str, Any], *, size: int = 6) -> dict[str, int]:
    return awaited_nodes(plan(model(topology), gpuPools=existing_pool(size, scaling)))


def test_the_first_servers_need_the_nodes_that_hold_them_and_at_least_the_fewest():
    assert first_nodes("16p-tp1-8d-tp2", {**SCALED, "minSize": 1}) == {"mi300x": 4}
    assert first_nodes("8p-tp1-4d-tp2", {**SCALED, "minSize": 3}) == {"mi300x": 3}


def test_servers_that_an_autoscaler_may_add_are_not_among_the_first():
    assert awaited_nodes(plan(GROWING, gpuPools=existing_pool(5, SCALED))) == {"mi300x": 2}


def test_all_nodes_of_a_fixed_pool_are_needed():
    assert first_nodes("8p-tp1-4d-tp2", {"mode": "fixed"}) == {"mi300x": 6}


def test_a_pool_whose_limits_are_its_size_is_the_autoscalers_all_the_same():
    pinned = {"mode": "cluster-autoscaler", "minSize": 4, "maxSize": 4}
    made = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(4, pinned))
    assert [each.autoscaled for each in made.pools] == [True]
    assert {role.rollout.max_surge for role in made.models[0].units[0].roles} == {0}


def test_servers_wait_for_weights_where_nodes_come_later_and_have_them_to_themselves():
    def create_timeout_s(scaling: dict[str, Any], kind: str, **prewarm: Any) -> int:
        disks: dict[str, Any] = {"modelCache": {"kind": kind}, "prewarm": prewarm} if kind != "none" else {}
        made = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(2, scaling), storage=disks)
        return made.models[0].units[0].roles[0].create_timeout_s

    fixed = {"mode": "fixed"}
    usual = create_timeout_s(fixed, "none")
    assert create_timeout_s(SCALED, "node-disk", timeoutS=5000) == usual + 5000
    assert create_timeout_s(SCALED, "node-disk", source="none") == usual
    assert create_timeout_s(fixed, "node-disk") == create_timeout_s(SCALED, "none") == usual


def test_a_shared_cache_is_advised_where_nodes_come_later():
    def advised(scaling: dict[str, Any]) -> list[str]:
        storage = {"modelCache": {"kind": "node-disk"}}
        made = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(2, scaling), storage=storage)
        return [advice.path for advice in made.advice]

    assert "storage.modelCache.kind" in advised(SCALED)
    assert "storage.modelCache.kind" not in advised({"mode": "fixed"})


def test_copies_are_advised_for_nodes_that_are_there_at_first_only():
    pools = existing_pool(4, {**SCALED, "minSize": 4})
    (text,) = [each.text for each in plan(model("8p-tp1-4d-tp2"), gpuPools=pools).advice if each.path == "gpuPools"]
    assert "models[0].copies of 2 would fit" in text
    assert problems(model("8p-tp1-4d-tp2", copies=2), gpuPools=pools) == []


def test_the_network_has_addresses_for_the_most_nodes():
    more = {"name": "more", "size": 2, "scaling": SCALED}
    config = validated(pool(), stack_changes={"cpuPools": [more]})
    assert [each.nodes for each in network_pools(config)] == [9, 3, 9]


def test_nodes_that_may_come_are_no_part_of_the_price_and_are_told():
    found = costs(planning.plan(validated(pool())))
    assert next(part.usd_per_hour for part in found.parts if part.part.startswith("mi300x")) == 2 * 48
    assert "mi300x: nodes that the cluster autoscaler adds, up to 9" in found.not_included


def test_the_autoscaler_may_change_pools_where_there_is_one():
    for made, wanted in ((pool(), True), (gpu_pool(), False)):
        config = validated(made)
        assert config.cluster is not None
        assert config.cluster.mode == "create"
        assert ("cluster-autoscaler" in iam_needs(config, config.cluster).nodes) is wanted


def test_a_stack_that_does_not_create_its_pools_leaves_the_autoscaler_to_others():
    config = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pool(2, SCALED)).config
    assert autoscaled_pools(config) == []


def test_the_add_on_knows_each_pool_with_its_limits():
    more = {"name": "more", "size": 1, "scaling": {"mode": "cluster-autoscaler", "minSize": 1, "maxSize": 3}}
    config = validated(pool(), stack_changes={"cpuPools": [more, {"name": "fixed", "size": 1}]})
    assert autoscaler_nodes(config, {"mi300x": "A", "more": "B"}) == "2:9:A, 1:3:B"


def test_the_autoscaler_waits_for_bare_metal_as_long_as_the_gate_and_runs_on_the_system_pool():
    settings = autoscaler_add_on(validated(pool(readyTimeoutMinutes=120))).configurations
    assert settings["maxNodeProvisionTime"] == "120m"
    assert settings["nodeSelectors"] == '{"oke.oraclecloud.com/pool.name": "system"}'
    assert settings["authType"] == "workload"


def test_what_the_stack_file_says_of_the_add_on_is_added():
    own = {"name": "ClusterAutoscaler", "version": "v1", "configurations": {"scaleDownUnneededTime": "60m"}}
    add_on = autoscaler_add_on(validated(pool(), addOns=[own]))
    assert (add_on.version, add_on.configurations["scaleDownUnneededTime"]) == ("v1", "60m")


@pytest.mark.parametrize("key", ["nodes", "authType", "nodeSelectors", "maxNodeProvisionTime"])
def test_what_follows_from_the_pools_can_not_be_said_of_the_add_on(key: str):
    own = {"name": "ClusterAutoscaler", "configurations": {key: "x"}}
    assert list(refusals(pool(), addOns=[own])) == [f"cluster.addOns[0].configurations.{key}"]


def test_an_add_on_of_ones_own_is_left_alone_where_no_pool_is_scaled():
    own = {"name": "ClusterAutoscaler", "configurations": {"nodes": "1:2:ocid", "authType": "instance"}}
    assert refusals(addOns=[own]) == {}


def test_the_cluster_is_new_enough_for_the_add_on():
    (problem,) = node_scaling_problems(validated(pool(), kubernetesVersion="v1.25.4"))
    assert (problem.path, problem.accepted) == ("cluster.kubernetesVersion", "v1.26 or newer")


def test_the_system_pool_has_one_size():
    made = created(stack_changes={"systemPool": {"scaling": SCALED}})
    assert list(refusals(stack_changes={"systemPool": made["systemPool"]})) == ["systemPool.scaling"]
