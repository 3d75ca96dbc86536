"""Servers that span nodes: LeaderWorkerSets, and what their pods are told and let do."""

import pulumi
import pytest
from created_cluster import created
from llmd_oke import planning
from llmd_oke.catalogue.serving import leader_worker_sets
from llmd_oke.operations.guards import gpus_of
from llmd_oke.planning.container_images import images_of
from llmd_oke.program.access import ClusterIdentity
from llmd_oke.values import module_folder
from render_support import validate_by_definition
from stack_files import model, stack

TOPOLOGY = "1p-tp1dp16ep-1d-tp1dp16ep"
NAMES = ("gpt-oss-120b-prefill", "gpt-oss-120b-decode")


@pytest.fixture
def wide(varied):
    """The rehearsal's stack with a server over two nodes for each role."""
    return varied(topology=TOPOLOGY)


def leader_worker_set(rendered, name=NAMES[0]):
    return rendered.kubernetes("LeaderWorkerSet", name)


def template(rendered, name=NAMES[0]):
    return leader_worker_set(rendered, name)["spec"]["leaderWorkerTemplate"]["workerTemplate"]


def container(rendered, name=NAMES[0]):
    (found,) = template(rendered, name)["spec"]["containers"]
    return found


def test_each_role_is_a_leaderworkerset_with_one_pod_for_each_node(wide):
    for name in NAMES:
        spec = leader_worker_set(wide, name)["spec"]
        assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (1, 2)
        assert "leaderTemplate" not in spec["leaderWorkerTemplate"]


def test_a_failed_pod_restarts_all_pods_of_its_server_that_spans_nodes(wide):
    assert leader_worker_set(wide)["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_an_update_waits_until_all_pod_groups_of_a_leaderworkerset_are_available(wide):
    assert leader_worker_set(wide)["metadata"]["annotations"] == {"pulumi.com/waitFor": "condition=Available"}


def test_leaderworkersets_are_valid_by_their_crd(wide):
    source = leader_worker_sets().definitions
    folder = module_folder(source.module, source.version) / source.folder
    for name in NAMES:
        validate_by_definition(leader_worker_set(wide, name), folder / next(iter(source.files)))


def test_pods_of_a_server_over_nodes_get_rank_and_address_from_leaderworkerset(wide):
    words = container(wide)["args"]
    for word in (
        "--data-parallel-size=16",
        "--data-parallel-size-local=8",
        "--data-parallel-hybrid-lb",
        "--nnodes=2",
        "--node-rank=$(LWS_WORKER_INDEX)",
        "--data-parallel-address=$(LWS_LEADER_ADDRESS)",
    ):
        assert word in words


def test_a_pod_of_a_server_that_spans_nodes_requests_a_whole_node(wide):
    limits = container(wide)["resources"]["limits"]
    assert (limits["amd.com/gpu"], limits["nvidia.com/sriov-rdma-vf"]) == ("8", "8")


def test_pods_of_a_server_over_nodes_wait_for_each_other_until_the_start_up_limit(wide):
    variables = {entry["name"]: entry.get("value") for entry in container(wide)["env"]}
    probe = container(wide)["startupProbe"]
    assert int(variables["VLLM_ENGINE_READY_TIMEOUT_S"]) == probe["periodSeconds"] * probe["failureThreshold"]


def test_pods_of_a_server_prefer_nodes_of_one_pool(wide):
    (preferred,) = template(wide)["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    term = preferred["podAffinityTerm"]
    assert term["topologyKey"] == "oke.oraclecloud.com/pool.name"
    assert term["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/group-key"]
    labels = template(wide)["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_pods_of_a_server_are_required_to_be_in_one_pool_if_nodes_are_labelled(rendered):
    wide = rendered(created(models=[model(topology=TOPOLOGY)]))
    affinity = template(wide)["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/group-key"]


def test_the_leaderworkerset_controller_is_installed_before_servers(rendered):
    stack = rendered(created(models=[model(topology=TOPOLOGY)], leaderWorkerSets="install"))
    names, kinds = ([getattr(item, name) for item in stack.resources] for name in ("name", "type"))
    first = kinds.index("kubernetes:leaderworkerset.x-k8s.io/v1:LeaderWorkerSet")
    release = stack.resources[names.index("leader-worker-sets-release")]
    assert names.index(release.name) < first
    assert release.inputs["chart"].startswith("oci://registry.k8s.io/lws/charts/lws")
    assert f"v{release.inputs['version']}" == leader_worker_sets().definitions.version


def test_only_servers_over_nodes_wait_for_the_definition_of_leaderworkersets(rendered, monkeypatch):
    def once_served(_access, name, _definitions, _after):
        return pulumi.Output.from_input(f"{name}-once-served")

    monkeypatch.setattr(ClusterIdentity, "name_once_served", once_served)
    both = rendered(stack(model(TOPOLOGY), model("agg-tp1-1r", name="small")))
    assert leader_worker_set(both)["metadata"]["namespace"] == "llm-d-once-served"
    assert both.kubernetes("Deployment", "small-aggregated")["metadata"]["namespace"] == "llm-d"


def test_image_and_chart_of_the_leaderworkerset_controller_are_in_the_image_list():
    plan = planning.plan_object(created(models=[model(topology=TOPOLOGY)], leaderWorkerSets="install"))
    used = {image.image.repository: image.path for image in images_of(plan)}
    assert {used["lws/lws"], used["lws/charts/lws"]} == {"leaderWorkerSets"}


def test_pods_of_a_role_may_reach_each_other_if_servers_span_nodes(wide, varied):
    def peers(rendered):
        spec = rendered.kubernetes("NetworkPolicy", NAMES[0])["spec"]
        return [
            rule["from"][0]["podSelector"]["matchLabels"]["llm-d.ai/role"]
            for rule in spec["ingress"]
            if "ports" not in rule
        ], [
            rule["to"][0]["podSelector"]["matchLabels"]["llm-d.ai/role"]
            for rule in spec["egress"]
            if "podSelector" in rule["to"][0]
        ]

    assert peers(wide) == (["decode", "prefill"], ["decode", "prefill"])
    assert peers(varied(topology="1p-tp1-1d-tp1")) == (["decode"], ["decode"])


def test_an_updates_gpu_count_includes_all_pods_of_a_leaderworkerset(wide):
    assert gpus_of(leader_worker_set(wide)) == 16
