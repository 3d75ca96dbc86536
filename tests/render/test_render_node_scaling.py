"""Pools that the cluster autoscaler changes, as they are declared."""

import json
from typing import Any

import pytest
from created_cluster import cluster_layer, created
from llmd_oke.program import program
from llmd_oke.testing import ClusterMocks, Declared, Rendered, declared
from oci_contract import oci_resources, require_known_arguments
from render_support import need_definitions

NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"
ADD_ON = "oci:ContainerEngine/addon:Addon"
SCALED = {"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 12}
SETTINGS = {"name": "ClusterAutoscaler", "configurations": {"scaleDownUnneededTime": "60m"}}
WITHOUT_MODELS = cluster_layer(pool={"scaling": SCALED}, cluster={"addOns": [SETTINGS]})


@pytest.fixture
def scaled(rendered: Any) -> Rendered:
    """Stacks with both kinds of pools, with and without an autoscaler."""
    more = {"name": "more", "size": 2, "scaling": SCALED}
    return rendered(created(pool={"scaling": SCALED}, cpuPools=[more, {"name": "fixed", "size": 1}]))


def autoscaler(stack: Rendered) -> dict[str, str]:
    (matches,) = (item for item in stack.of_type(ADD_ON) if item.inputs["addonName"] == "ClusterAutoscaler")
    return {item["key"]: item["value"] for item in matches.inputs["configurations"]}


def test_updates_ignore_the_size_of_autoscaled_pools_only(scaled: Rendered):
    ignored = {
        pool.inputs["name"]: "nodeConfigDetails.size" in pool.ignore_changes for pool in scaled.of_type(NODE_POOL)
    }
    assert ignored == {"system": False, "mi300x": True, "more": True, "fixed": False}


def test_an_autoscaled_pool_starts_with_the_size_in_the_stack_file(scaled: Rendered):
    assert scaled.resource(NODE_POOL, "mi300x-node-pool").inputs["nodeConfigDetails"]["size"] == 9


def test_the_cluster_autoscaler_is_configured_with_exactly_the_autoscaled_pools(scaled: Rendered):
    settings = autoscaler(scaled)
    assert settings["nodes"] == "2:12:mi300x-node-pool, 2:12:more-node-pool"
    assert settings["authType"] == "workload"
    assert json.loads(settings["nodeSelectors"]) == {"oke.oraclecloud.com/pool.name": "system"}


def test_the_cluster_autoscaler_follows_the_node_gate_and_no_model_waits_for_it(scaled: Rendered):
    (own,) = (item for item in scaled.of_type("llmd-oke:index:AddOns") if item.name == "cluster-autoscaler")
    needed = {urn.rsplit("::", 1)[-1] for urn in own.depends_on}
    assert {"mi300x-node-pool", "more-node-pool", "mi300x-gate-job"} <= needed
    assert not any(own.urn in item.depends_on for item in scaled.resources)


def downloading(rendered: Any, scaling: dict[str, Any]) -> Rendered:
    """A stack whose servers find their weights on nodes' disks."""
    disks = {"modelCache": {"kind": "node-disk"}, "prewarm": {"timeoutS": 5000}}
    return rendered(created(pool={"scaling": scaling}, storage=disks))


def gate(stack: Rendered) -> Declared:
    return stack.resource("kubernetes:batch/v1:Job", "mi300x-gate-job")


def awaited(stack: Rendered) -> str:
    (container,) = gate(stack).inputs["spec"]["template"]["spec"]["containers"]
    assert "--nodes=$(NODES)" in container["args"]
    (variable,) = container["env"]
    source = variable["valueFrom"]["configMapKeyRef"]
    return stack.kubernetes("ConfigMap", source["name"])["data"][source["key"]]


def test_the_node_gate_waits_for_the_nodes_that_initial_servers_need(rendered: Any):
    assert awaited(downloading(rendered, {**SCALED, "minSize": 1})) == "2"
    assert awaited(downloading(rendered, {**SCALED, "minSize": 5})) == "5"


def test_without_models_the_node_gate_waits_for_the_initial_size_of_each_pool(rendered: Any):
    assert awaited(rendered(WITHOUT_MODELS)) == "9"


def test_the_node_gate_of_an_autoscaled_pool_runs_only_once(rendered: Any, scaled: Rendered):
    first = gate(scaled)
    model = {**created()["models"][0], "topology": "16p-tp1-8d-tp2"}
    later = gate(rendered(created(pool={"scaling": {**SCALED, "minSize": 3}, "size": 10}, models=[model])))
    assert later.inputs["metadata"]["name"] == first.inputs["metadata"]["name"]
    assert first.ignore_changes == later.ignore_changes == ("spec",)


def test_updates_ignore_no_changes_of_a_fixed_pools_node_gate(rendered: Any):
    assert gate(rendered(created())).ignore_changes == ()


class SmallerPool(ClusterMocks):
    """A new pool that begins with the size that the engine saw last of the one before it."""

    def new_resource(self, args: Any) -> tuple[str | None, dict[str, Any]]:
        matches, outputs = super().new_resource(args)
        if args.typ == NODE_POOL and args.name == "mi300x-node-pool":
            outputs = {**outputs, "nodeConfigDetails": {**outputs["nodeConfigDetails"], "size": 1}}
        return matches, outputs


def test_no_node_gate_waits_for_more_nodes_than_an_autoscaled_pool_has_at_first():
    config = created(pool={"scaling": SCALED})
    need_definitions(config["release"])
    stack = declared(program, config={"llmd-oke:stack": json.dumps(config)}, cluster=SmallerPool())
    assert awaited(stack) == "1"


def test_weights_are_pre_warmed_on_the_nodes_that_the_node_gate_waits_for(rendered: Any):
    stack = downloading(rendered, {**SCALED, "minSize": 1})
    (job,) = (item for item in stack.of_type("kubernetes:batch/v1:Job") if "prewarm" in item.name)
    assert (job.inputs["spec"]["completions"], awaited(stack)) == (2, "2")


def test_servers_on_autoscaled_nodes_have_time_to_download_weights(rendered: Any):
    for scaling, download_s in (({**SCALED, "minSize": 1}, 5000), ({"mode": "fixed"}, 0)):
        stack = downloading(rendered, scaling)
        deployment = stack.kubernetes_resource("Deployment", "gpt-oss-120b-decode")
        assert deployment.inputs["spec"]["progressDeadlineSeconds"] == 4200 + download_s
        assert deployment.timeouts["create"] == f"{4200 + download_s}s"


def test_the_cluster_autoscaler_gets_iam_permissions_of_its_own(scaled: Rendered):
    texts = [text for item in scaled.of_type("oci:Identity/policy:Policy") for text in item.inputs["statements"]]
    own = [text for text in texts if "'cluster-autoscaler'" in text]
    assert any("manage cluster-node-pools" in text for text in own)
    assert all("request.principal.cluster_id = 'oke-cluster'" in text for text in own)


def test_autoscaler_settings_of_the_stack_file_are_merged_into_the_add_on(rendered: Any):
    settings = autoscaler(rendered(WITHOUT_MODELS))
    assert settings["scaleDownUnneededTime"] == "60m"
    assert settings["nodes"] == "2:12:mi300x-node-pool"


def test_no_cluster_autoscaler_is_declared_if_no_pool_is_autoscaled(rendered: Any):
    names = {item.inputs["addonName"] for item in rendered(created()).of_type(ADD_ON)}
    assert "ClusterAutoscaler" not in names


def test_both_supported_oci_plug_in_versions_know_every_argument_of_autoscaled_pools(scaled: Rendered):
    require_known_arguments(oci_resources(scaled))
