from math import isfinite
from typing import Any

import pytest
from created_stacks import created, refusals, validated
from llmd_base.errors import InvalidStack
from llmd_oke import catalogue, planning
from llmd_oke.catalogue.cluster import availability_domains
from llmd_oke.catalogue.operations import prices
from llmd_oke.catalogue.shapes import flexible_shape
from llmd_oke.planning import pools
from llmd_oke.planning.cluster_plan import CyclingPlan
from llmd_oke.planning.estimates import costs
from llmd_oke.planning.network import network_pools
from llmd_oke.planning.pools import (
    autoscaled_pools,
    autoscaler_add_on,
    autoscaler_nodes,
    awaited_nodes,
    node_scaling_problems,
    region_words,
)
from stack_files import cluster_layer, created_pool, existing_pool, known_shape, model, ocid, plan, problems

ROCM = "Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-DOCA-OFED-3.4.0-AMD-ROCM-724-2026.07.13-0"
IMPORT = {"name": ROCM, "uri": "https://objectstorage/o/image.oci", "checksum": "md5:" + "0" * 32}


def known_image() -> catalogue.OracleImage:
    return catalogue.image(ROCM) or pytest.fail(ROCM)


def of_pool(**changes: Any) -> dict[str, str]:
    return refusals(created_pool(**changes))


def of_stack(**changes: Any) -> dict[str, str]:
    return refusals(stack_changes=changes)


@pytest.mark.parametrize("launch", ["managed-compute-cluster", "cluster-network", "compute-cluster-instances", "plain"])
def test_every_launch_mode_of_gpu_pools_is_accepted(launch: str):
    result = refusals(created_pool(launch=launch), stack_changes={"rdma": "none" if launch == "plain" else "sriov-vf"})
    assert [path for path in result if path.startswith("gpuPools")] == []


@pytest.mark.parametrize(
    ("launch", "option", "key"),
    [
        ("cluster-network", {"computeClusterId": ocid("computecluster")}, "computeClusterId"),
        ("plain", {"computeClusterId": ocid("computecluster")}, "computeClusterId"),
        ("cluster-network", {"faultDomains": ["FAULT-DOMAIN-1"]}, "faultDomains"),
        ("cluster-network", {"hostGroupId": ocid("hostgroup")}, "hostGroupId"),
        ("compute-cluster-instances", {"hostGroupId": ocid("hostgroup")}, "hostGroupId"),
        ("managed-compute-cluster", {"bootVolumeVpusPerGb": 20}, "bootVolumeVpusPerGb"),
        ("plain", {"bootVolumeVpusPerGb": 20}, "bootVolumeVpusPerGb"),
        ("cluster-network", {"cycling": {}}, "cycling"),
        ("compute-cluster-instances", {"cycling": {}}, "cycling"),
        ("cluster-network", {"evictionGraceMinutes": 5}, "evictionGraceMinutes"),
        ("compute-cluster-instances", {"poolId": ocid("instancepool")}, "poolId"),
    ],
)
def test_a_pool_option_that_the_launch_mode_does_not_support_is_refused(launch: str, option: dict[str, Any], key: str):
    result = of_pool(launch=launch, **option)
    assert f"launch is {launch}" in result[f"gpuPools[0].{key}"]


@pytest.mark.parametrize(
    ("launch", "option"),
    [
        ("managed-compute-cluster", {"computeClusterId": ocid("computecluster")}),
        ("compute-cluster-instances", {"computeClusterId": ocid("computecluster")}),
        ("managed-compute-cluster", {"faultDomains": ["FAULT-DOMAIN-1"], "hostGroupId": ocid("hostgroup")}),
        ("cluster-network", {"bootVolumeVpusPerGb": 20, "capacityReservationId": ocid("capacityreservation")}),
        ("managed-compute-cluster", {"cycling": {"mode": "replace-boot-volume"}, "evictionGraceMinutes": 5}),
    ],
)
def test_a_pool_option_that_the_launch_mode_supports_is_accepted(launch: str, option: dict[str, Any]):
    assert of_pool(launch=launch, **option) == {}


def test_only_created_pools_need_a_domain_and_image_and_may_have_a_compute_cluster():
    assert set(refusals(existing_pool())) == {"gpuPools[0].availabilityDomain", "gpuPools[0].image"}
    assert refusals(existing_pool(poolId=ocid("nodepool"))) == {}
    result = of_pool(poolId=ocid("nodepool"), computeClusterId=ocid("computecluster"))
    assert set(result) == {"gpuPools[0].computeClusterId"}


@pytest.mark.parametrize("image", [{}, {"ocid": ocid("image"), "import": IMPORT}])
def test_a_pool_has_either_an_image_or_an_image_to_import(image: dict[str, Any]):
    assert "nodes boot from one image" in of_pool(image=image)["gpuPools[0].image"]


def test_an_imported_image_must_be_in_the_catalogue():
    assert of_pool(image={"import": IMPORT}) == {}
    result = of_pool(image={"import": {**IMPORT, "name": "Canonical-Ubuntu"}})
    assert ROCM in result["gpuPools[0].image.import.name"]


@pytest.mark.parametrize(
    ("key", "pool"), [("gpuPools[0]", "mi300x"), ("systemPool", "system"), ("cpuPools[0]", "routers")]
)
def test_a_secret_link_to_an_image_is_refused_with_the_setting_for_the_pools_link(key: str, pool: str):
    image = {"import": {**IMPORT, "uri": "https://objectstorage.example.com/p/secret/n/space/b/images/o/node.oci"}}
    others = {"systemPool": {"image": image}, "cpuPools": [{"name": "routers", "image": image}]}
    text = refusals(created_pool(image=image), stack_changes=others)[f"{key}.image.import.uri"]
    assert f"pulumi config set --secret --path llmd-oke:imageLinks.{pool})" in text


@pytest.mark.parametrize(
    ("launch", "changes", "refused"),
    [
        ("managed-compute-cluster", {"shapes": ("BM.GPU.MI355X.8",)}, True),
        ("managed-compute-cluster", {"operating_system": "Oracle Linux"}, True),
        ("plain", {"operating_system": "Oracle Linux"}, False),
    ],
    ids=["another shape's", "RDMA with another system than Ubuntu", "another system without RDMA"],
)
def test_an_imported_image_must_be_for_the_shape_and_have_ubuntu_for_rdma(
    monkeypatch: pytest.MonkeyPatch, launch: str, changes: dict[str, Any], refused: bool
):
    known = known_image().model_copy(update=changes)
    monkeypatch.setattr(catalogue, "image", lambda name: known)
    assert ("gpuPools[0].image.import.name" in of_pool(launch=launch, image={"import": IMPORT})) is refused


@pytest.mark.parametrize("form", ["Canonical-Ubuntu-24.04-{}-0", "Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-6.8-{}-0"])
@pytest.mark.parametrize(("built", "told"), [("2026.04.29", ["CVE-2026-31431"]), ("2026.04.30", [])])
def test_check_warns_of_an_imported_image_older_than_known_kernel_fixes(
    monkeypatch: pytest.MonkeyPatch, form: str, built: str, told: list[str]
):
    name = form.format(built)
    known = known_image().model_copy(update={"name": name})
    monkeypatch.setattr(catalogue, "image", lambda _: known)
    advice = planning.plan(validated(created_pool(image={"import": {**IMPORT, "name": name}}))).advice
    texts = [item.text for item in advice if item.path == "gpuPools[0].image.import.name"]
    assert [text.partition(";")[0] for text in texts] == [f"the image has {fault}" for fault in told]


def test_the_error_for_an_image_of_another_shape_lists_all_images_for_the_shape():
    names = catalogue.image_names()
    other = next(name for name in names if "BM.GPU.MI300X.8" not in (catalogue.image(name) or pytest.fail(name)).shapes)
    text = of_pool(image={"import": {**IMPORT, "name": other}})["gpuPools[0].image.import.name"]
    _, _, offered = text.partition("one of ")
    assert {name for name in names if name in offered} == {name for name in names if name != other}


def test_rdma_in_pods_requires_rdma_on_nodes():
    assert "has no RDMA network" in of_pool(launch="plain")["gpuPools[0].launch"]


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("v1.35.0", "newer than the control plane"),
        ("v1.34.3", "newer"),
        ("v1.30.9", "3 minor versions behind"),
        *((version, None) for version in ("v1.34.2", "v1.34.1", "v1.31.0")),
    ],
)
def test_nodes_newer_than_the_cluster_or_over_three_minor_versions_older_are_refused(version: str, why: str | None):
    pool, system = of_pool(kubernetesVersion=version), of_stack(systemPool={"kubernetesVersion": version})
    paths = ("gpuPools[0].kubernetesVersion", "systemPool.kubernetesVersion")
    assert (*pool, *system) == (paths if why else ())
    assert all(why in text for text in (*pool.values(), *system.values()) if why)


def test_self_managed_nodes_require_a_recent_enough_control_plane():
    def refused(launch: str, version: str) -> str | None:
        changes: dict[str, Any] = {"stack_changes": {"gpuStack": "oke-plugin"}, "kubernetesVersion": version}
        return refusals(created_pool(launch=launch), **changes).get("cluster.kubernetesVersion")

    assert "at least v1.27.10" in (refused("cluster-network", "v1.27.9") or "")
    assert refused("cluster-network", "v1.27.10") is None
    assert refused("managed-compute-cluster", "v1.27.9") is None


def test_huge_pages_must_leave_memory_of_the_node_to_servers(monkeypatch: pytest.MonkeyPatch):
    assert of_pool(hugePagesGib=1024) == {}
    known = known_shape()
    monkeypatch.setattr(catalogue, "shape", lambda name: known.model_copy(update={"memory_gib": 1536}))
    assert "at most 512" in of_pool(hugePagesGib=1024)["gpuPools[0].hugePagesGib"]


@pytest.mark.parametrize(
    ("cycling", "key", "accepted"),
    [
        ({"maxSurge": "0", "maxUnavailable": "0"}, "cycling", "maxSurge or maxUnavailable above 0"),
        ({"maxSurge": "0%", "maxUnavailable": "0"}, "cycling", "maxSurge or maxUnavailable above 0"),
        ({"maxSurge": "0", "maxUnavailable": "0%"}, "cycling", "maxSurge or maxUnavailable above 0"),
        ({"mode": "replace-boot-volume", "maxSurge": "1"}, "cycling.maxSurge", "0, or mode: replace-node"),
        ({"maxSurge": "1"}, "cycling.maxSurge", "0, or mode: replace-node"),
        ({"maxUnavailable": "0"}, "cycling", "maxSurge or maxUnavailable above 0"),
    ],
)
def test_node_cycling_settings_that_could_replace_no_node_are_refused(cycling: dict[str, Any], key: str, accepted: str):
    ((path, text),) = of_pool(cycling=cycling).items()
    assert path == f"gpuPools[0].{key}"
    assert f"(accepted: {accepted})" in text


@pytest.mark.parametrize(
    ("cycling", "expected"),
    [
        ({}, ("replace-boot-volume", "0", "1")),
        ({"mode": "replace-node"}, ("replace-node", "1", "0")),
        ({"mode": "replace-node", "maxSurge": "0"}, ("replace-node", "0", "1")),
        ({"mode": "replace-node", "maxUnavailable": "25%"}, ("replace-node", "1", "25%")),
    ],
)
def test_node_cycling_by_default_replaces_boot_volumes_or_surges_one_node(
    cycling: dict[str, Any], expected: tuple[str, str, str]
):
    planned = planning.plan(validated(created_pool(cycling=cycling), stack_changes={"systemPool": {"cycling": {}}}))
    assert planned.created.gpu_pools[0].cycling == CyclingPlan(*expected)
    assert planned.created.cpu_pools[0].cycling == CyclingPlan("replace-node", "1", "0")
    told = [advice for advice in planned.advice if advice.path == "gpuPools[0].cycling.maxUnavailable"]
    assert bool(told) is (expected[0] == "replace-node" and expected[2] != "0")


def test_a_cpu_pool_with_a_misspelt_key_hides_no_problem_of_another():
    """GPU nodes are tainted, so that nothing of a system pool would run on them."""
    pools = [{"name": "a", "shape": "VM.Standard.E5.Flex", "sise": 1}, {"name": "b", "shape": "BM.GPU.MI300X.8"}]
    with pytest.raises(InvalidStack) as refused:
        planning.plan_object(created(stack_changes={"cpuPools": pools, "systemPool": {"shape": "BM.GPU.MI300X.8"}}))
    paths = {problem.path for problem in refused.value.problems}
    assert paths == {"cpuPools[0].sise", "cpuPools[1].shape", "systemPool.shape"}


def test_pool_names_are_unique():
    assert "gpuPools[0] has it already" in of_stack(cpuPools=[{"name": "mi300x"}])["cpuPools[0].name"]
    assert "systemPool has it already" in of_stack(cpuPools=[{"name": "system"}])["cpuPools[0].name"]
    assert "systemPool has it already" in of_pool(name="system")["gpuPools[0].name"]


def test_several_problems_of_pools_are_reported_at_once_at_each_pools_path():
    pool = created_pool(kubernetesVersion="v1.36.1", image={}, bootVolumeVpusPerGb=20)
    large = {"name": "large", "shape": "VM.Optimized3.Flex", "ocpus": 32}
    result = refusals(pool, stack_changes={"systemPool": {"shape": "VM.GPU.A10.1"}, "cpuPools": [large]})
    assert set(result) == {
        *(f"gpuPools[0].{key}" for key in ("kubernetesVersion", "image", "bootVolumeVpusPerGb")),
        *("systemPool.shape", "cpuPools[0].ocpus"),
    }


@pytest.mark.parametrize(
    ("name", "region"),
    [
        ("Uocm:US-ASHBURN-AD-1", "us-ashburn"),
        ("TGjA:CA-TORONTO-1-AD-1", "ca-toronto-1"),
        ("Uocm:PHX-AD-3", "us-phoenix"),
        ("Uocm:XYZ-AD-1", None),
        ("AD-1", None),
    ],
)
def test_the_region_is_recognized_in_an_availability_domains_name(name: str, region: str | None):
    assert region_words(name) == region


@pytest.mark.parametrize(
    ("region", "name"),
    [
        ("us-ashburn-1", "Uocm:US-ASHBURN-AD-1"),
        ("us-phoenix-1", "Uocm:PHX-AD-1"),
        ("eu-frankfurt-1", "Uocm:EU-FRANKFURT-1-AD-1"),
    ],
)
def test_the_first_availability_domain_of_a_region_has_the_name_that_oci_gives_it(region: str, name: str):
    assert availability_domains().name("Uocm", region, 1) == name


def test_every_availability_domain_in_the_stack_file_must_be_in_the_region():
    other = ["Uocm:EU-FRANKFURT-1-AD-1"]
    result = refusals(
        created_pool(availabilityDomain="Uocm:PHX-AD-1"),
        stack_changes={
            "systemPool": {"availabilityDomains": ["Uocm:US-ASHBURN-AD-2", *other]},
            "cpuPools": [{"name": "more", "availabilityDomains": other}],
            "storage": {"modelCache": {"kind": "file-storage", "availabilityDomain": other[0]}},
        },
        lookupResults={"availabilityDomains": other},
    )
    assert set(result) == {
        "gpuPools[0].availabilityDomain",
        "systemPool.availabilityDomains[1]",
        "cpuPools[0].availabilityDomains[0]",
        "cluster.lookupResults.availabilityDomains[0]",
        "storage.modelCache.availabilityDomain",
    }


@pytest.mark.parametrize(
    ("region", "name"),
    [("us-phoenix-1", "Uocm:PHX-AD-1"), ("ap-singapore-2", "x:AP-SINGAPORE-2-AD-1"), ("us-ashburn-1", "x:IAD-AD-1")],
)
def test_availability_domains_of_the_region_or_without_one_are_accepted(region: str, name: str):
    assert refusals(created_pool(availabilityDomain=name), region=region) == {}


def of_system_pool(**changes: object) -> dict[str, str]:
    return refusals(stack_changes={"systemPool": changes})


@pytest.mark.parametrize(
    ("ocpus", "memory_gib", "good"), [(16, 64, True), (4, 257, False), (32, 16, False), (126, 2098, True)]
)
def test_memory_of_a_flexible_shape_must_be_within_its_limits_for_each_ocpu(ocpus: int, memory_gib: int, good: bool):
    result = of_system_pool(shape="VM.Standard.E5.Flex", ocpus=ocpus, memoryGib=memory_gib)
    assert ("systemPool.memoryGib" not in result) is good


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"shape": "VM.Standard.E6.Flex", "ocpus": 100, "memoryGib": 2048}, "accepted: 100 to 1454"),
        ({"shape": "VM.Standard3.Flex", "ocpus": 64, "memoryGib": 1024}, "accepted: at most 56"),
        ({"shape": "VM.Standard3.Flex", "ocpus": 56, "memoryGib": 512}, None),
        ({"shape": "VM.Standard.E9.Flex", "ocpus": 200, "memoryGib": 2048}, None),
        ({"shape": "VM.Standard.E9.Flex", "ocpus": 16, "memoryGib": 2048}, "so 16 to 1024 with 16 OCPUs"),
    ],
    ids=["too much memory", "too many OCPUs", "the most", "no published limits", "too much for its OCPUs"],
)
def test_ocpus_and_memory_beyond_a_flexible_shapes_limits_are_refused_once(sizes: dict[str, Any], text: str | None):
    result = list(of_system_pool(**sizes).values())
    assert [str(text) in problem for problem in result] == ([] if text is None else [True])


def test_every_flexible_shape_with_a_price_and_no_fixed_one_has_limits_of_its_size():
    assert flexible_shape("VM.Standard2.16") is None
    for name in prices().flexible_shapes:
        limits = flexible_shape(name)
        assert limits is not None, name
        assert isfinite(limits.memory_gb), name


SCALED = {"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 9}
GROWING = model("8p-tp1-4d-tp2", scaling={"decode": {"minReplicas": 2, "maxReplicas": 12, "requests": 77}})


def pool(size: int = 2, **changes: Any) -> dict[str, Any]:
    return created_pool(size=size, **{"scaling": SCALED, **changes})


def existing_pools(size: int, scaling: dict[str, Any]) -> list[dict[str, Any]]:
    return [existing_pool(size=size, scaling=scaling)]


@pytest.mark.parametrize("launch", ["managed-compute-cluster", "plain"])
def test_managed_node_pools_can_be_autoscaled(launch: str):
    one_node = model("2p-tp1-1d-tp2")
    changes: dict[str, Any] = {"rdma": "none" if launch == "plain" else "sriov-vf", "models": [one_node]}
    assert refusals(pool(launch=launch), stack_changes=changes) == {}


@pytest.mark.parametrize("launch", ["cluster-network", "compute-cluster-instances"])
def test_self_managed_nodes_and_existing_and_system_pools_cannot_be_autoscaled(launch: str):
    assert list(refusals(pool(launch=launch))) == ["gpuPools[0].scaling.mode"]
    assert "gpuPools[0].scaling.mode" in refusals(pool(poolId=ocid("nodepool")))
    assert list(of_system_pool(scaling=SCALED)) == ["systemPool.scaling"]


@pytest.mark.parametrize(("size", "key"), [(2, "minSize"), (10, "maxSize")])
def test_the_initial_size_of_an_autoscaled_pool_must_lie_within_its_limits(size: int, key: str):
    scaling = {**SCALED, "minSize": 3, "maxSize": 9}
    assert list(refusals(pool(size, scaling=scaling))) == [f"gpuPools[0].scaling.{key}"]
    more = {"name": "more", "size": 1, "scaling": SCALED}
    assert list(refusals(stack_changes={"cpuPools": [more]})) == ["cpuPools[0].scaling.minSize"]


def test_maxreplicas_servers_need_room_on_the_pools_maximum_number_of_nodes():
    few, many = {**SCALED, "maxSize": 3}, {**SCALED, "maxSize": 4}
    assert problems(GROWING, gpuPools=existing_pools(2, many)) == []
    (problem,) = problems(GROWING, gpuPools=existing_pools(2, few))
    assert problem.path == "models[0].scaling.decode.maxReplicas"


@pytest.mark.parametrize(
    ("topology", "most", "key", "value", "least"),
    [("8p-tp1-4d-tp2", 9, "size", 1, 2), ("8p-tp1-8d-tp2", 2, "scaling.maxSize", 2, 3)],
    ids=["too few nodes at first", "too few at most"],
)
def test_autoscaled_pools_without_room_for_the_initial_servers_are_refused(
    topology: str, most: int, key: str, value: int, least: int
):
    (problem,) = problems(model(topology), gpuPools=existing_pools(1, {**SCALED, "minSize": 1, "maxSize": most}))
    assert (problem.path, problem.value) == (f"gpuPools[0].{key}", value)
    assert problem.accepted.startswith(f"at least {least},")


def test_rollouts_do_not_count_on_gpus_of_nodes_that_an_autoscaler_may_add():
    scaled = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pools(2, SCALED))
    fixed = plan(model("8p-tp1-4d-tp2"), nodes=9)
    assert {role.rollout.max_surge for role in scaled.models[0].units[0].roles} == {0}
    assert all(role.rollout.max_surge for role in fixed.models[0].units[0].roles)


def test_nodes_that_an_autoscaler_may_add_are_neither_there_at_first_nor_idle():
    result = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pools(2, SCALED))
    assert (len(result.nodes_at_first), len(result.nodes), result.idle_nodes) == (2, 9, [])
    stays = {**SCALED, "minSize": 4}
    assert len(plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pools(4, stays)).idle_nodes) == 2


@pytest.mark.parametrize(
    ("served", "scaling", "nodes"),
    [
        (model("16p-tp1-8d-tp2"), {**SCALED, "minSize": 1}, 4),
        (model("8p-tp1-4d-tp2"), {**SCALED, "minSize": 3}, 3),
        (model("8p-tp1-4d-tp2"), {"mode": "fixed"}, 6),
        (GROWING, SCALED, 2),
    ],
    ids=["initial servers", "the pool's minimum", "a fixed pool", "servers that autoscaling may add"],
)
def test_an_update_waits_for_nodes_of_initial_servers_and_for_the_pools_minimum(
    served: dict[str, Any], scaling: dict[str, Any], nodes: int
):
    assert awaited_nodes(plan(served, gpuPools=existing_pools(6, scaling))) == {"mi300x": nodes}


def test_an_update_without_models_waits_for_the_initial_size_of_an_autoscaled_pool():
    planned = planning.plan_object(cluster_layer(created_pool(size=6, scaling={**SCALED, "minSize": 1})))
    assert awaited_nodes(planned) == {"mi300x": 6}


def test_a_pool_with_equal_autoscaling_limits_still_counts_as_autoscaled():
    pinned = {"mode": "cluster-autoscaler", "minSize": 4, "maxSize": 4}
    result = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pools(4, pinned))
    assert [item.autoscaled for item in result.pools] == [True]
    assert {role.rollout.max_surge for role in result.models[0].units[0].roles} == {0}


def test_the_create_timeout_includes_pre_warming_only_on_autoscaled_nodes():
    def create_timeout_s(scaling: dict[str, Any], kind: str, **prewarm: Any) -> int:
        disks: dict[str, Any] = {"modelCache": {"kind": kind}, "prewarm": prewarm} if kind != "none" else {}
        result = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pools(2, scaling), storage=disks)
        return result.models[0].units[0].roles[0].create_timeout_s

    fixed = {"mode": "fixed"}
    usual = create_timeout_s(fixed, "none")
    assert create_timeout_s(SCALED, "node-disk", timeoutS=5000) == usual + 5000
    assert create_timeout_s(SCALED, "node-disk", source="none") == usual
    assert create_timeout_s(fixed, "node-disk") == create_timeout_s(SCALED, "none") == usual


@pytest.mark.parametrize(("scaling", "told"), [(SCALED, True), ({"mode": "fixed"}, False)])
def test_check_recommends_a_shared_model_cache_for_autoscaled_nodes(scaling: dict[str, Any], told: bool):
    storage = {"modelCache": {"kind": "node-disk"}}
    result = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pools(2, scaling), storage=storage)
    assert ("storage.modelCache.kind" in [advice.path for advice in result.advice]) is told


def test_check_recommends_more_copies_only_for_initial_nodes():
    pools = existing_pools(4, {**SCALED, "minSize": 4})
    (text,) = [item.text for item in plan(model("8p-tp1-4d-tp2"), gpuPools=pools).advice if item.path == "gpuPools"]
    assert "models[0].copies of 2 would fit" in text
    assert problems(model("8p-tp1-4d-tp2", copies=2), gpuPools=pools) == []


def test_the_network_has_addresses_for_the_maximum_number_of_nodes():
    more = {"name": "more", "size": 2, "scaling": SCALED}
    config = validated(pool(), stack_changes={"cpuPools": [more]})
    assert [item.nodes for item in network_pools(config)] == [9, 3, 9]


def test_the_cost_estimate_covers_initial_nodes_and_excludes_autoscaled_ones():
    result = costs(planning.plan(validated(pool())))
    assert next(part.usd_per_hour for part in result.parts if part.part.startswith("mi300x")) == 2 * 48
    assert "mi300x: nodes that the cluster autoscaler adds, up to 9" in result.not_included


def test_a_stack_that_does_not_create_its_pools_installs_no_autoscaler():
    config = plan(model("8p-tp1-4d-tp2"), gpuPools=existing_pools(2, SCALED)).config
    assert autoscaled_pools(config) == []


def test_the_autoscaler_add_on_gets_each_pool_with_its_limits():
    more = {"name": "more", "size": 1, "scaling": {"mode": "cluster-autoscaler", "minSize": 1, "maxSize": 3}}
    config = validated(pool(), stack_changes={"cpuPools": [more, {"name": "fixed", "size": 1}]})
    cluster = planning.plan(config).created
    assert autoscaler_nodes(cluster.autoscaled, {"mi300x": "A", "more": "B"}) == "2:9:A, 1:3:B"


def test_the_autoscaler_add_on_has_the_pools_settings_and_those_of_the_stack_file():
    own = {"name": "ClusterAutoscaler", "version": "v1", "configurations": {"scaleDownUnneededTime": "60m"}}
    add_on = autoscaler_add_on(validated(pool(readyTimeoutMinutes=120), addOns=[own]))
    assert add_on.version == "v1"
    assert add_on.configurations["scaleDownUnneededTime"] == "60m"
    assert add_on.configurations["maxNodeProvisionTime"] == "120m"
    assert add_on.configurations["nodeSelectors"] == '{"oke.oraclecloud.com/pool.name": "system"}'
    assert add_on.configurations["authType"] == "workload"


@pytest.mark.parametrize("key", ["nodes", "authType", "nodeSelectors", "maxNodeProvisionTime"])
def test_cluster_autoscaler_settings_that_follow_from_autoscaled_pools_are_refused(key: str):
    own = {"name": "ClusterAutoscaler", "configurations": {key: "x"}}
    assert list(refusals(pool(), addOns=[own])) == [f"cluster.addOns[0].configurations.{key}"]
    assert refusals(addOns=[own]) == {}


def test_the_cluster_autoscaler_requires_kubernetes_1_26_or_newer():
    (problem,) = node_scaling_problems(validated(pool(), kubernetesVersion="v1.25.4"))
    assert (problem.path, problem.accepted) == ("cluster.kubernetesVersion", "v1.26 or newer")
    assert list(node_scaling_problems(validated(pool(), kubernetesVersion="v1.26.2"))) == []


def test_images_are_sorted_by_the_date_in_their_name_and_not_by_a_version_with_dots():
    name = "Oracle-Linux-9.5.1-2026.07.31-0-OKE-1.34.2-1234"
    assert pools._date_and_build(name) == ["2026.07.31", "00001234"]
