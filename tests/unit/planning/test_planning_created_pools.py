"""The pools of a created cluster with everything decided."""

from llmd_oke import planning
from llmd_oke.cluster.gpu_pool import GpuPoolArgs
from llmd_oke.cluster.pools import CpuPoolArgs, SystemPoolArgs
from llmd_oke.planning.cluster_plan import ClusterPlan
from stack_files import created_pool, created_stack, ocid


def planned(**changes: object) -> ClusterPlan:
    created = planning.plan_object(created_stack(**changes)).created
    assert created is not None
    return created


def test_pool_options_are_arguments_of_the_pulumi_components_for_pools():
    cluster = planned(cpuPools=[{"name": "more"}])
    system, more = cluster.cpu_pools
    assert cluster.gpu_pools[0].options.keys() < GpuPoolArgs.__annotations__.keys()
    assert system.options.keys() < SystemPoolArgs.__annotations__.keys()
    assert more.options.keys() < CpuPoolArgs.__annotations__.keys()


def test_the_network_has_addresses_for_the_maximum_number_of_pods():
    bare = {"shape": "BM.Standard.E5.192", "ocpus": 2, "memoryGib": 16}
    cluster = planned(systemPool=bare, cpuPools=[{"name": "small", "ocpus": 2, "memoryGib": 16}, {"name": "large"}])
    told = [pool.max_pods for pool in cluster.pools]
    assert told == [64, 110, 31, 110]
    assert [pool.max_pods for pool in cluster.network.pools] == told


def test_cpu_pools_without_an_image_of_their_own_get_the_oke_image_that_lookup_found():
    looked_up = {"lookupResults": {"systemImageId": ocid("image", "oke")}}
    assert planned(cluster=looked_up).cpu_pools[0].image_id == ocid("image", "oke")
    system = {"image": {"ocid": ocid("image", "own")}}
    assert planned(systemPool=system, cluster=looked_up).cpu_pools[0].image_id == ocid("image", "own")
    assert planned().cpu_pools[0].image_id is None
    assert planned().gpu_pools[0].image_id == ocid("image")


def test_an_existing_pool_has_no_image_in_the_plan():
    there = created_pool(poolId=ocid("nodepool"))
    network = {"vcnId": ocid("vcn"), "cidr": "10.0.0.0/16"}
    cluster = planned(gpuPools=[there], cluster={"network": network})
    assert (cluster.gpu_pools[0].pool_id, cluster.gpu_pools[0].image_id) == (ocid("nodepool"), None)


def test_a_plan_without_protection_unprotects_cluster_network_and_pools_in_pulumi():
    cluster = planned(cluster={"network": {"protect": True}})
    parts = lambda of: {of.protect, of.network.protect, *(pool.protect for pool in of.pools)}  # noqa: E731
    assert parts(cluster) == {True}
    assert parts(cluster.without_protection()) == {False}
