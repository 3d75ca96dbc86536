"""A stack that creates its cluster as a whole: layers, order, guards, the way in."""

import base64
import json
import re
from typing import Any

import pulumi
import pytest
from created_cluster import LOOKUP_RESULTS, cluster_layer, created, layer_of, network_layer
from golden_stacks import CREATED_CHOICES
from llmd_oke.program import program
from llmd_oke.program.access import owns_oci_resources
from llmd_oke.testing import KUBECONFIG, ClusterMocks, Declared, Rendered, declared
from llmd_rehearsal.oci_plugin.bridge import compare
from llmd_rehearsal.oci_plugin.facts import resource_of
from oci_contract import oci_resources, require_known_arguments
from render_support import by_urn, need_definitions
from stack_files import StackObject, created_pool, model, ocid

NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"
JOB = "kubernetes:batch/v1:Job"
ADD_ON = "oci:ContainerEngine/addon:Addon"


@pytest.fixture
def whole(rendered: Any) -> Rendered:
    """Cluster and models in one stack."""
    return rendered(created())


def of_prefix(stack: Rendered, prefix: str) -> list[str]:
    return [resource.name for resource in stack.resources if resource.type.startswith(prefix)]


GUARDED = {
    "network": {"bastionService": {"clientCidrs": ["203.0.113.0/24"]}},
    "kmsKeyId": ocid("key"),
    "imagePolicy": {"kmsKeyIds": [ocid("key", "images")]},
    "oidc": {"issuerUrl": "https://token.example.com", "clientId": "kubernetes"},
}


@pytest.mark.parametrize(
    "config",
    [network_layer(), cluster_layer(cluster=GUARDED), layer_of(CREATED_CHOICES["public-api-server"][1])],
    ids=["defaults", "keys-and-bastion", "public-api-server"],
)
def test_both_supported_oci_plug_ins_know_all_arguments_of_a_created_stack(rendered: Any, config: StackObject):
    require_known_arguments(oci_resources(rendered(config)))


def test_a_stack_of_the_cluster_layer_declares_no_models(rendered: Any):
    stack = rendered(cluster_layer())
    assert stack.of_type("llmd-oke:index:PrefillDecodeUnit") == []
    assert stack.of_type("llmd-oke:index:Crds")
    assert "endpoints" not in stack.outputs


def test_the_cluster_layer_exports_what_the_serving_layer_needs(rendered: Any):
    team = {"key": "team", "value": "search", "effect": "NoSchedule"}
    outputs = rendered(cluster_layer(pool={"taints": [team]})).outputs
    assert outputs["cluster_id"] == "oke-cluster"
    assert outputs["region"] == "us-ashburn-1"
    assert outputs["kubernetes_version"] == "v1.34.2"
    assert outputs["gpu_pools"] == {
        "mi300x": {
            "pool_id": "mi300x-node-pool",
            "node_label": "oke.oraclecloud.com/pool.name=mi300x",
            "taints": [team],
        }
    }
    assert json.loads(outputs["kubeconfig"])["users"][0]["user"]["exec"]["command"] == "llmd-oke"


class OtherStack(ClusterMocks):
    """The stack of the cluster layer, as a reference to it answers."""

    def new_resource(self, args: Any) -> tuple[str | None, dict[str, Any]]:
        if args.typ == "pulumi:pulumi:StackReference":
            pools = {"mi300x": {"taints": [{"key": "team", "value": "search", "effect": "NoSchedule"}]}}
            outputs = {"cluster_id": "ocid1.cluster.oc1.iad.c", "kubeconfig": "{}", "gpu_pools": pools}
            return args.name, {"name": args.name, "outputs": outputs, "secretOutputNames": ["kubeconfig"]}
        return super().new_resource(args)


def serving_stack(taints: list[dict[str, str]]) -> Rendered:
    config = created(layer="serving", clusterStack="org/llmd-oke/prod-cluster", pool={"taints": taints})
    config.pop("cluster")
    need_definitions(config["release"])
    return declared(program, config={"llmd-oke:stack": json.dumps(config)}, cluster=OtherStack())


def test_a_serving_stack_reads_its_cluster_from_the_outputs_of_the_cluster_stack():
    stack = serving_stack([{"key": "team", "value": "search"}])
    provider = stack.resource("pulumi:providers:kubernetes", "cluster")
    assert provider.inputs["clusterIdentifier"] == "ocid1.cluster.oc1.iad.c"
    assert provider.inputs["kubeconfig"] == "{}"
    assert "kubeconfig" in provider.secret_inputs
    assert of_prefix(stack, "oci:") == []
    assert stack.of_type("llmd-oke:index:Crds") == []
    assert set(stack.outputs) == {"namespace", "endpoints", "topologies"}


def test_a_serving_layer_whose_pods_lack_a_toleration_of_the_nodes_taint_is_refused():
    with pytest.raises(pulumi.RunError, match=r"gpuPools\[0\].taints: .*team=search:NoSchedule"):
        serving_stack([])


def test_the_api_servers_subnet_may_read_metrics_of_routers_and_servers(rendered: Any):
    stack = rendered(created(cluster={"network": {}}))
    policies = [item for item in stack.manifests() if item["kind"] == "NetworkPolicy"]
    read = [item for item in policies if item["metadata"]["name"].endswith(("-epp", "-prefill", "-decode"))]
    assert len(read) == 3
    for policy in read:
        peers = [peer for rule in policy["spec"]["ingress"] for peer in rule.get("from", ())]
        assert {"ipBlock": {"cidr": "10.140.0.0/29"}} in peers


def test_the_kubernetes_provider_is_identified_by_the_clusters_ocid(whole: Rendered):
    for provider in whole.of_type("pulumi:providers:kubernetes"):
        assert provider.inputs["clusterIdentifier"] == "oke-cluster"
        assert "kubeconfig" in provider.secret_inputs


def test_oci_is_called_in_the_clusters_region_whatever_the_user_configured(rendered: Any):
    stack = rendered(network_layer())
    provider = stack.resource("pulumi:providers:oci", "oci")
    assert provider.inputs["region"] == "us-ashburn-1"
    for resource in oci_resources(stack):
        assert resource.provider.startswith(provider.urn), resource.name


def test_existing_subnets_security_groups_and_route_tables_are_used_and_not_created(rendered: Any):
    network = {
        "vcnId": "ocid1.vcn.oc1.iad.there",
        "cidr": "10.0.0.0/16",
        "subnets": {"workers": "ocid1.subnet.oc1.iad.workers", "pods": "ocid1.subnet.oc1.iad.pods"},
        "securityGroups": {"workers": "ocid1.networksecuritygroup.oc1.iad.workers"},
        "routeTables": {"private": "ocid1.routetable.oc1.iad.private"},
    }
    stack = rendered(cluster_layer(cluster={"network": network}))
    created_names = {resource.name for resource in oci_resources(stack)}
    assert "network-api-subnet" in created_names
    existing = {"network-workers-subnet", "network-pods-subnet", "network-workers-nsg", "network-private-routes"}
    assert not existing & created_names
    details = next(item.inputs["nodeConfigDetails"] for item in oci_resources(stack) if item.type == NODE_POOL)
    assert details["placementConfigs"][0]["subnetId"] == network["subnets"]["workers"]
    assert details["nsgIds"] == [network["securityGroups"]["workers"]]
    pods = details["nodePoolPodNetworkOptionDetails"]
    assert pods["podSubnetIds"] == [network["subnets"]["pods"]]


def test_with_lookup_results_in_the_stack_file_rendering_calls_no_oci_function():
    asked: list[str] = []

    class Silent(ClusterMocks):
        def call(self, args: Any) -> Any:
            asked.append(args.token)
            return super().call(args)

    config = cluster_layer(
        cluster={
            "clusterId": "ocid1.cluster.oc1.iad.there",
            "network": {"vcnId": "ocid1.vcn.oc1.iad.there", "cidr": "10.0.0.0/16"},
            "lookupResults": {**LOOKUP_RESULTS, "kubeconfig": KUBECONFIG},
        }
    )
    declared(program, config={"llmd-oke:stack": json.dumps(config)}, cluster=Silent())
    assert asked == []


def test_without_lookup_results_in_the_stack_file_rendering_looks_them_up_in_oci():
    asked: set[str] = set()

    class Asked(ClusterMocks):
        def call(self, args: Any) -> Any:
            asked.add(args.token.rsplit(":", 1)[-1])
            return super().call(args)

    config = cluster_layer(cluster={"lookupResults": {}, "iam": {}})
    declared(program, config={"llmd-oke:stack": json.dumps(config)}, cluster=Asked())
    assert {"getClusterKubeConfig", "getNodePoolOption", "getServices", "getAvailabilityDomains"} <= asked


def depends(stack: Rendered, token: str, name: str) -> set[str]:
    """The names of what a resource comes after."""
    return {urn.rsplit("::", 1)[-1] for urn in stack.resource(token, name).depends_on}


def test_iam_policies_are_created_before_the_gpu_pools_that_need_them(rendered: Any):
    stack = rendered(cluster_layer(pool={"launch": "cluster-network"}, cluster={"iam": {"grants": ["ocir"]}}))
    assert "cluster-iam-policy" in depends(stack, "llmd-oke:index:OkeCluster", "oke")
    assert "oke-cluster" in depends(stack, "llmd-oke:index:Iam", "nodes-iam") | depends(
        stack, "oci:Identity/policy:Policy", "nodes-iam-policy"
    )
    assert {"cluster-iam-policy", "nodes-iam-policy"} <= depends(stack, "llmd-oke:index:GpuPool", "mi300x")


@pytest.mark.parametrize(
    ("update", "rehearsed", "waits"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_cluster_waits_for_its_iam_policies_only_in_updates_at_oci_itself(
    monkeypatch: pytest.MonkeyPatch, update: bool, rehearsed: bool, waits: bool
):
    asked: set[str] = set()

    def wait(args: pulumi.ResourceTransformationArgs) -> None:
        asked.add(args.type_)

    monkeypatch.setattr("llmd_oke.program.cluster.is_update", lambda: update)
    monkeypatch.setattr("llmd_oke.program.cluster.wait_for_policies", lambda: wait)
    settings = {"llmd-oke:stack": json.dumps(cluster_layer()), "llmd-oke:rehearsed": json.dumps(rehearsed)}
    declared(program, config=settings)
    assert ("oci:ContainerEngine/cluster:Cluster" in asked) is waits


def test_a_lustre_file_system_is_created_after_the_iam_policies_and_the_cluster(rendered: Any):
    stack = rendered(created(storage={"modelCache": {"kind": "lustre"}}))
    assert {"cluster-iam-policy", "oke-cluster"} <= depends(stack, "llmd-oke:index:Storage", "storage")


def test_the_node_gate_waits_for_pools_and_operators_and_serving_for_the_node_gate(whole: Rendered):
    assert "cluster-iam-policy" in depends(whole, "llmd-oke:index:GpuPool", "mi300x")
    assert "system-node-pool" in depends(whole, "llmd-oke:index:AddOns", "add-ons")
    assert "system-node-pool" in depends(whole, "llmd-oke:index:CertManager", "cert-manager")
    assert {"mi300x-node-pool", "amd-gpu-operator-release"} <= depends(whole, "llmd-oke:index:NodeGate", "mi300x-gate")
    assert "mi300x-gate-job" in depends(whole, "llmd-oke:index:ServingNamespace", "serving")


def test_gpu_pools_are_created_after_the_api_server_answers_and_after_other_pools(rendered: Any):
    stack = rendered(created(cpuPools=[{"name": "routers", "shape": "VM.Standard.E5.Flex"}]))
    before = {"api-server", "system-node-pool", "routers-node-pool"}
    assert before <= depends(stack, "llmd-oke:index:GpuPool", "mi300x")
    assert "system-node-pool" in depends(stack, "llmd-oke:index:CpuPool", "routers")
    (answered,) = [item for item in stack.resources if item.name == "api-server"]
    (cluster,) = stack.of_type("oci:ContainerEngine/cluster:Cluster")
    assert (answered.type, answered.deleted_with) == ("kubernetes:core/v1:ConfigMap", cluster.urn)


def test_the_node_gate_runs_on_the_system_pool_and_waits_for_nodes_with_all_devices(whole: Rendered):
    job = whole.resource(JOB, "mi300x-gate-job")
    pod = job.inputs["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == [
        "--selector=oke.oraclecloud.com/pool.name=mi300x",
        "--nodes=$(NODES)",
        "--device=amd.com/gpu=8",
        "--device=nvidia.com/sriov-rdma-vf=8",
        "--rdma-states=/apis/sriovnetwork.openshift.io/v1/namespaces/nvidia-network-operator/sriovnetworknodestates",
        "--timeout-s=5400",
    ]
    assert whole.kubernetes("ConfigMap", "node-gate-mi300x")["data"]["nodes"] == "9"
    assert pod["nodeSelector"] == {"oke.oraclecloud.com/pool.name": "system"}
    assert job.inputs["spec"]["backoffLimit"] == 0
    limit = int(job.timeouts["create"].removesuffix("s"))
    assert 5400 < job.inputs["spec"]["activeDeadlineSeconds"] <= limit


def test_the_last_log_lines_of_a_failed_node_gate_are_its_pods_termination_message(whole: Rendered):
    (container,) = whole.resource(JOB, "mi300x-gate-job").inputs["spec"]["template"]["spec"]["containers"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}
STATES = {"apiGroups": ["sriovnetwork.openshift.io"], "resources": ["sriovnetworknodestates"], "verbs": ["list"]}


def test_pools_and_node_gates_check_rdma_devices_only_if_pods_get_virtual_functions(whole: Rendered, rendered: Any):
    plain = rendered(created(rdma="none", models=[model("agg-tp1-8r")]))
    for stack, in_pods in ((whole, True), (plain, False)):
        (pool,) = stack.of_type("llmd-oke:index:GpuPool")
        assert pool.inputs["rdma_in_pods"] is in_pods
        assert (STATES in stack.kubernetes("ClusterRole", "llmd-oke-node-gate-mi300x")["rules"]) == in_pods
        (container,) = stack.resource(JOB, "mi300x-gate-job").inputs["spec"]["template"]["spec"]["containers"]
        assert any(argument.startswith("--rdma-states=") for argument in container["args"]) == in_pods


def test_the_node_gate_may_only_read_nodes_and_the_state_of_their_rdma_devices(whole: Rendered):
    role = whole.kubernetes("ClusterRole", "llmd-oke-node-gate-mi300x")
    assert role["rules"] == [NODES, STATES]
    (subject,) = whole.kubernetes("ClusterRoleBinding", "llmd-oke-node-gate-mi300x")["subjects"]
    job = whole.resource(JOB, "mi300x-gate-job").inputs
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert (subject["name"], subject["namespace"]) == (account, job["metadata"]["namespace"])


def test_the_node_gate_runs_again_for_another_pool_size_but_not_for_other_labels(rendered: Any):
    def job_name(**pool: Any) -> str:
        return rendered(cluster_layer(pool=pool)).resource(JOB, "mi300x-gate-job").inputs["metadata"]["name"]

    assert job_name(size=10) != job_name(size=9)
    assert job_name(labels={"a": "b"}) == job_name(size=9)


@pytest.mark.parametrize("changes", [{}, {"frontDoor": {"exposure": "internal", "uncheckedPods": "accepted"}}])
def test_objects_of_a_created_cluster_are_deleted_with_the_cluster(rendered: Any, changes: dict[str, Any]):
    stack = rendered(created(**changes))
    (cluster,) = stack.of_type("oci:ContainerEngine/cluster:Cluster")
    for resource in stack.resources:
        if resource.type.startswith("kubernetes:") and "CustomResourceDefinition" not in resource.type:
            expected = "" if owns_oci_resources(resource.type, resource.inputs) else cluster.urn
            assert resource.deleted_with == expected, resource.name


@pytest.mark.parametrize(
    ("type_", "props", "owns"),
    [
        ("kubernetes:core/v1:Service", {"spec": {"type": "LoadBalancer"}}, True),
        ("kubernetes:core/v1:Service", {"spec": {"type": "ClusterIP"}}, False),
        ("kubernetes:core/v1:Service", {"spec": {}}, False),
        ("kubernetes:core/v1:PersistentVolumeClaim", {}, True),
        ("kubernetes:core/v1:PersistentVolumeClaim", {"spec": {"resources": {}}}, True),
        ("kubernetes:core/v1:PersistentVolumeClaim", {"spec": {"storageClassName": "oci-bv"}}, True),
        ("kubernetes:core/v1:PersistentVolumeClaim", {"spec": {"storageClassName": "", "volumeName": "v"}}, False),
        ("kubernetes:core/v1:PersistentVolume", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}, True),
        ("kubernetes:core/v1:PersistentVolume", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}, False),
        ("kubernetes:apps/v1:StatefulSet", {}, True),
        ("kubernetes:apps/v1:Deployment", {}, False),
    ],
)
def test_objects_that_own_oci_resources_are_deleted_before_the_cluster(type_: str, props: dict[str, Any], owns: bool):
    assert owns_oci_resources(type_, props) is owns


def test_a_service_whose_type_is_unknown_counts_as_owning_oci_resources():
    def program() -> None:
        spec = pulumi.Output.from_input({"type": "ClusterIP"})
        pulumi.export("owns", owns_oci_resources("kubernetes:core/v1:Service", {"spec": spec}))

    assert declared(program).outputs["owns"] is True


@pytest.mark.parametrize("kind", ["file-storage", "lustre"])
def test_a_shared_model_caches_volumes_are_deleted_with_the_cluster(rendered: Any, kind: str):
    stack = rendered(created(storage={"modelCache": {"kind": kind}}))
    (cluster,) = stack.of_type("oci:ContainerEngine/cluster:Cluster")
    for token in ("PersistentVolumeClaim", "PersistentVolume"):
        (made,) = stack.of_type(f"kubernetes:core/v1:{token}")
        assert made.deleted_with == cluster.urn


def test_objects_of_an_existing_cluster_are_deleted_one_by_one(rehearsal: Rendered):
    assert not [resource for resource in rehearsal.resources if resource.deleted_with]


@pytest.mark.parametrize(("changes", "protect"), [({}, True), ({"protect": False}, False)])
def test_cluster_and_pools_are_protected_by_default(rendered: Any, changes: dict[str, Any], protect: bool):
    stack = rendered(cluster_layer(cluster=changes))
    kinds = ("cluster:Cluster", "nodePool:NodePool", "computeCluster:ComputeCluster")
    guarded = [resource for resource in stack.resources if resource.type.endswith(kinds)]
    assert len(guarded) == 4
    assert {resource.protect for resource in guarded} == {protect}


def test_a_tunnel_changes_only_the_api_servers_address_among_the_declared_resources(rendered: Any):
    straight = rendered(cluster_layer())
    tunnelled = rendered(cluster_layer(), apiServer="https://127.0.0.1:6443")
    pairs = zip(straight.resources, tunnelled.resources, strict=True)
    changed = [tunnel for plain, tunnel in pairs if plain.inputs != tunnel.inputs]
    assert {resource.type for resource in changed} == {"pulumi:providers:kubernetes"}
    assert "127.0.0.1:6443" in changed[0].inputs["kubeconfig"]


def test_gpu_nodes_have_okes_gpu_device_plug_in_disabled_unless_the_stack_uses_it(rendered: Any):
    def disabled(**changes: Any) -> bool:
        pool = rendered(cluster_layer(**changes)).resource(NODE_POOL, "mi300x-node-pool")
        labels = {label["key"]: label["value"] for label in pool.inputs["initialNodeLabels"]}
        return labels.get("oci.oraclecloud.com/disable-gpu-device-plugin") == "true"

    assert disabled()
    assert not disabled(gpuStack="oke-plugin")


def test_every_pool_of_the_stack_file_is_declared(rendered: Any):
    stack = rendered(created(cpuPools=[{"name": "routers", "shape": "VM.Standard.E5.Flex"}]))
    assert of_prefix(stack, NODE_POOL) == ["mi300x-node-pool", "routers-node-pool", "system-node-pool"]


def test_gpu_nodes_boot_from_the_image_that_the_stack_imports(rendered: Any):
    name = "Canonical-Ubuntu-24.04-2026.02.28-0-KERNEL-ORACLE-6.8-DOCA-OFED-3.4.0-AMD-ROCM-724-2026.07.13-0"
    wanted = {"name": name, "uri": "https://objectstorage/o/image.oci", "checksum": "md5:" + "a" * 32}
    stack = rendered(cluster_layer(pool={"image": {"import": wanted}}))
    (image,) = stack.of_type("oci:Core/image:Image")
    pool = stack.resource(NODE_POOL, "mi300x-node-pool")
    assert pool.inputs["nodeSourceDetails"]["imageId"] == image.name


def test_add_on_versions_in_the_stack_file_override_those_that_the_kit_sets(rendered: Any):
    own = {"name": "NodeFeatureDiscovery", "version": "v9"}
    stack = rendered(cluster_layer(cluster={"addOns": [own, {"name": "NodeProblemDetector"}]}))
    add_ons = {r.inputs["addonName"]: r.inputs for r in stack.of_type("oci:ContainerEngine/addon:Addon")}
    assert add_ons["NodeFeatureDiscovery"]["version"] == "v9"
    assert {"NodeProblemDetector", "NvidiaNetworkOperator"} <= set(add_ons)


def test_add_ons_are_installed_in_the_order_of_their_dependencies(whole: Rendered):
    (cluster,) = whole.of_type("oci:ContainerEngine/cluster:Cluster")
    discovery, operator = (
        whole.resource(ADD_ON, f"add-ons-{name}") for name in ("nodefeaturediscovery", "nvidianetworkoperator")
    )
    assert discovery.urn in operator.depends_on
    assert {discovery.deleted_with, operator.deleted_with} == {cluster.urn}


def test_destroy_removes_the_cluster_autoscaler_before_pools_that_it_could_refill(rendered: Any):
    scaling = {"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 9}
    stack = rendered(created(pool={"size": 2, "scaling": scaling}))
    assert stack.resource(ADD_ON, "cluster-autoscaler-clusterautoscaler").deleted_with == ""


def test_a_shared_file_system_is_created_if_the_model_cache_is_kept_on_one(rendered: Any):
    stack = rendered(created(storage={"modelCache": {"kind": "file-storage"}}))
    (target,) = stack.of_type("oci:FileStorage/mountTarget:MountTarget")
    assert target.inputs["availabilityDomain"] == "Uocm:US-ASHBURN-AD-1"
    assert stack.of_type("llmd-oke:index:ModelCache")


def test_file_storage_can_be_mounted_only_from_the_nodes_subnet_and_privileged_ports(rendered: Any):
    cache = {"modelCache": {"kind": "file-storage"}}
    stack = rendered(network_layer(storage=cache))
    workers = stack.resource("oci:Core/subnet:Subnet", "network-workers-subnet")
    (export,) = stack.of_type("oci:FileStorage/export:Export")
    (option,) = export.inputs["exportOptions"]
    assert option["source"] == workers.inputs["cidrBlock"]
    assert option["requirePrivilegedSourcePort"] is True


@pytest.mark.parametrize(("kind", "mounts"), [("file-storage", True), ("lustre", False)])
def test_gpu_nodes_install_nfs_only_if_the_model_cache_is_on_file_storage(rendered: Any, kind: str, mounts: bool):
    stack = rendered(created(storage={"modelCache": {"kind": kind}}))
    user_data = stack.resource(NODE_POOL, "mi300x-node-pool").inputs["nodeMetadata"]["user_data"]
    assert ("nfs-common" in base64.b64decode(user_data).decode()) is mounts


def test_kubelets_have_the_pools_topology_manager_policy_unless_rdma_is_disabled(rendered: Any):
    pools = [
        created_pool(name="usual"),
        created_pool(name="own", topologyManagerPolicy="restricted", topologyManagerScope="pod"),
        created_pool(name="off", topologyManagerPolicy="none"),
    ]

    def arguments(rdma: str) -> dict[str, list[str]]:
        stack = rendered({**cluster_layer(), "gpuPools": pools, "rdma": rdma})
        scripts = {
            item.inputs["name"]: base64.b64decode(item.inputs["nodeMetadata"]["user_data"]).decode()
            for item in stack.of_type(NODE_POOL)
        }
        return {name: re.findall(r"--topology-manager-\S+=[a-z-]+", scripts[name]) for name in ("usual", "own", "off")}

    with_rdma = {
        "usual": ["--topology-manager-policy=best-effort", "--topology-manager-scope=container"],
        "own": ["--topology-manager-policy=restricted", "--topology-manager-scope=pod"],
        "off": [],
    }
    assert arguments("sriov-vf") == with_rdma
    assert arguments("none") == {**with_rdma, "usual": []}


@pytest.mark.parametrize("launch", ["cluster-network", "compute-cluster-instances"])
def test_self_managed_nodes_use_the_best_effort_topology_manager_policy_too(rendered: Any, launch: str):
    stack = rendered(cluster_layer(pool={"launch": launch}))
    texts = json.dumps([resource.inputs for resource in stack.resources])
    scripts = [base64.b64decode(data).decode() for data in re.findall(r'"user_data": "([^"]+)"', texts)]
    assert all("--topology-manager-policy=best-effort" in script for script in scripts if "nvme-raid" in script)
    assert [script for script in scripts if "nvme-raid" in script]


TEAM = {"key": "example.com/team", "value": "a", "effect": "NoSchedule"}


def tolerated(manifest: Any) -> list[tuple[str, str]]:
    pod = manifest["spec"]["template"]["spec"]
    return [(toleration["key"], toleration["value"]) for toleration in pod["tolerations"]]


def test_servers_pre_warming_smoke_jobs_and_canaries_tolerate_taints_of_gpu_pools(rendered: Any):
    storage = {"modelCache": {"kind": "node-disk"}}
    stack = rendered(created(pool={"taints": [TEAM]}, storage=storage, monitoring="install", canaries={}))
    pods = {
        r.name: tolerated(r.inputs)
        for r in stack.resources
        if r.type in {JOB, "kubernetes:apps/v1:Deployment"}
        and "amd.com/gpu" in {t["key"] for t in r.inputs["spec"]["template"]["spec"].get("tolerations", [])}
    }
    assert {"prefill", "decode", "smoke", "cache", "canary"} <= {part for name in pods for part in name.split("-")}
    assert set(map(tuple, pods.values())) == {(("amd.com/gpu", "present"), ("example.com/team", "a"))}


def named(name: str) -> StackObject:
    """A cluster of a name with a bastion."""
    network = {"bastionService": {"clientCidrs": ["203.0.113.0/24"]}}
    return cluster_layer(cluster={"name": name, "network": network})


def test_a_stack_exports_the_bastion_that_leads_to_its_private_endpoint(rendered: Any):
    assert rendered(named("prod")).outputs["bastion_id"] == "network-bastion"
    assert rendered(cluster_layer()).outputs["bastion_id"] is None


def test_renaming_a_cluster_does_not_change_its_kubernetes_provider(rendered: Any):
    before, after = (list(by_urn(rendered(named(name)))) for name in ("prod", "renamed"))
    assert before == after


def test_renaming_an_oke_cluster_updates_cluster_network_and_pools_in_place(rendered: Any):
    """The plug-in replaces what can't be renamed: policies and the bastion."""

    def resources(name: str) -> dict[tuple[str, str], Declared]:
        made = by_urn(rendered(named(name)))
        return {urn: resource for urn, resource in made.items() if resource.type.startswith("oci:")}

    before = resources("prod")
    changed: dict[str, list[str]] = {}
    for urn, resource in resources("renamed").items():
        ignored = frozenset(resource.ignore_changes)
        diff = compare(resource_of(resource.type), dict(before[urn].inputs), dict(resource.inputs), ignored)
        changed |= {resource.name: diff.replaces} if diff.changed else {}
    assert {"oke-cluster", "network-vcn"} <= changed.keys()
    replaced = {name: keys for name, keys in changed.items() if keys}
    assert replaced == {"cluster-iam-policy": ["name"], "network-bastion": ["name"]}


def test_with_permission_to_replace_no_resource_of_a_created_cluster_is_protected(rendered: Any):
    def protected(**settings: str) -> list[str]:
        stack = rendered(network_layer(), **settings)
        return [resource.name for resource in stack.resources if resource.protect]

    assert protected()
    assert protected(allowReplace="true") == []


FRANKFURT = "Uocm:EU-FRANKFURT-1-AD-1"


@pytest.mark.parametrize(
    ("cluster", "domain"),
    [
        (
            {"region": "eu-frankfurt-1", "lookupResults": {**LOOKUP_RESULTS, "availabilityDomains": [FRANKFURT]}},
            FRANKFURT,
        ),
        ({"compartmentId": "ocid1.compartment.oc1..other"}, LOOKUP_RESULTS["availabilityDomains"][0]),
    ],
)
def test_clusters_of_one_name_in_different_compartments_have_different_policy_names(
    rendered: Any, cluster: dict[str, Any], domain: str
):
    def names(**parts: Any) -> set[str]:
        stack = rendered(cluster_layer(**parts))
        rights = [item for item in stack.resources if item.type.startswith("oci:Identity/")]
        return {str(item.inputs.get("name") or item.inputs["displayName"]) for item in rights}

    launch = {"launch": "cluster-network"}
    here = names(pool=launch)
    assert here
    assert not here & names(pool={**launch, "availabilityDomain": domain}, cluster=cluster)
