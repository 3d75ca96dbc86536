import pulumi
import pytest
from llmd_base.errors import KitError
from llmd_oke.operators.helm_operators import AmdGpuOperator, CertManager, NodeFeatureDiscovery
from llmd_oke.operators.rdma_network import RdmaNetwork
from llmd_oke.testing import ClusterMocks, Rendered, declared

TOLERATION = {"key": "amd.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
RELEASE = "kubernetes:helm.sh/v3:Release"
SHAPE = "BM.GPU.MI300X.8"
DISCOVERY = "node-feature-discovery"


class HelmMocks(ClusterMocks):
    """A cluster where Helm releases come out as they were asked for."""

    def new_resource(self, args):
        id_, state = super().new_resource(args)
        if args.typ == RELEASE:
            state["status"] = {"name": args.inputs["name"], "namespace": args.inputs["namespace"], "status": "deployed"}
        return id_, state


def rendered(program) -> Rendered:
    return declared(program, cluster=HelmMocks())


@pytest.fixture(scope="module")
def helm_operator() -> Rendered:
    """All of `gpuStack: helm-operator`, in its order."""

    def program():
        certificates = CertManager("cert-manager", {})
        matches = NodeFeatureDiscovery("node-feature-discovery", {"tolerations": [TOLERATION]})
        after = pulumi.ResourceOptions(depends_on=[certificates, matches])
        operator = AmdGpuOperator("amd-gpu-operator", {"tolerations": [TOLERATION]}, after)
        pulumi.export("namespace", operator.namespace)
        pulumi.export("device_config", operator.device_config)

    return rendered(program)


@pytest.mark.parametrize("name", ["cert-manager", "node-feature-discovery", "amd-gpu-operator"])
def test_helm_releases_have_the_same_timeout_as_their_pulumi_resource(helm_operator, name):
    release = helm_operator.resource(RELEASE, f"{name}-release")
    assert release.timeouts["create"] == release.timeouts["update"] == f"{release.inputs['timeout']}s"
    assert release.timeouts["delete"] == "900s"


def test_operators_namespaces_allow_privileged_pods(helm_operator):
    for name in ("cert-manager", "node-feature-discovery", "kube-amd-gpu"):
        labels = helm_operator.kubernetes("Namespace", name)["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


def test_node_feature_discovery_tolerates_the_gpu_taint_beside_its_charts_own_taints(helm_operator):
    values = helm_operator.resource(RELEASE, "node-feature-discovery-release").inputs["values"]
    keys = [toleration["key"] for toleration in values["worker"]["tolerations"]]
    assert keys == ["amd-dcm", "amd-gpu-unhealthy", "amd.com/gpu"]


def test_the_amd_deviceconfig_is_created_after_the_operator_and_deleted_before_it(helm_operator):
    config = helm_operator.kubernetes_resource("DeviceConfig", "gpus")
    release = helm_operator.resource(RELEASE, "amd-gpu-operator-release")
    assert release.urn in config.depends_on
    assert config.inputs["metadata"]["namespace"] == release.inputs["namespace"] == "kube-amd-gpu"
    assert config.inputs["spec"]["selector"] == {"feature.node.kubernetes.io/amd-gpu": "true"}


def test_the_amd_gpu_operator_is_installed_after_its_dependencies(helm_operator):
    component = helm_operator.resource("llmd-oke:index:AmdGpuOperator", "amd-gpu-operator")
    release = helm_operator.resource(RELEASE, "amd-gpu-operator-release")
    needed = {helm_operator.resource(RELEASE, f"{name}-release").urn for name in ("cert-manager", DISCOVERY)}
    assert release.parent == component.urn
    assert needed <= set(component.depends_on)


def test_the_amd_deviceconfig_can_select_nodes_by_their_oci_shape():
    selector = {"node.kubernetes.io/instance-type": SHAPE}
    matches = rendered(lambda: AmdGpuOperator("gpu", {"node_selector": selector}))
    assert matches.kubernetes("DeviceConfig", "gpus")["spec"]["selector"] == selector


@pytest.mark.parametrize(
    ("selector", "there"),
    [
        ({}, True),
        ({"node_selector": {"feature.node.kubernetes.io/amd-gpu": "true"}}, True),
        ({"node_selector": {"node.kubernetes.io/instance-type": SHAPE}}, False),
    ],
)
def test_the_default_nfd_rule_is_installed_only_if_nodes_are_selected_by_its_labels(selector, there):
    release = rendered(lambda: AmdGpuOperator("gpu", selector)).resource(RELEASE, "gpu-release")
    assert release.inputs["values"]["installdefaultNFDRule"] is there


@pytest.fixture(scope="module")
def rdma() -> Rendered:
    def program():
        network = RdmaNetwork("rdma", {"shapes": [SHAPE]})
        pulumi.export("resources", network.resources)
        pulumi.export("networks", network.networks)
        pulumi.export("namespace", network.namespace)

    return rendered(program)


def test_sr_iov_policies_are_created_after_the_limit_on_simultaneously_drained_nodes(rdma):
    policy = rdma.kubernetes_resource("SriovNetworkNodePolicy", "bm-gpu-mi300x-8")
    assert rdma.kubernetes_resource("SriovNetworkPoolConfig", "rdma-vf").urn in policy.depends_on
    assert rdma.kubernetes_resource("IPPool", "sriov-pool").urn in policy.depends_on


def test_an_operator_for_an_unknown_shape_is_refused_with_the_shapes_name():
    with pytest.raises(KitError, match=r"no shape 'BM.GPU.X'"):
        rendered(lambda: RdmaNetwork("rdma", {"shapes": ["BM.GPU.X"]}))
