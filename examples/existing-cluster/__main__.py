"""Serves gpt-oss-120b with prefill and decode servers on an OKE cluster that is there, and tells other stacks where."""

import pulumi
import pulumi_kubernetes as k8s
from llmd_oke import Crds, FrontDoor, PrefillDecodeUnit, Router, ServingNamespace
from pulumi import ResourceOptions

RELEASE, MODEL, NAMESPACE = "llm-d-0.9.0", "gpt-oss-120b", "llm-d"

config = pulumi.Config("serving")
cluster_id = config.require("clusterId")
kubeconfig = config.get_secret("kubeconfig")  # without it Pulumi takes that of KUBECONFIG
control_plane_cidrs = [cidr] if (cidr := config.get("controlPlaneCidr")) else None  # addresses of the API server
router_release = pulumi.Config("llmd-oke").get("rehearsedRouter")  # in rehearsals that can't have RELEASE's router
cluster = k8s.Provider("cluster", cluster_identifier=cluster_id, kubeconfig=kubeconfig, enable_patch_force=True)
# The definition of InferencePools may be in the cluster already; it stays there in the end.
definitions = k8s.Provider(
    "definitions",
    cluster_identifier=cluster_id,
    kubeconfig=kubeconfig,
    enable_patch_force=True,
    upsert_existing_objects=True,
)

crds = Crds("crds", {"release": RELEASE}, ResourceOptions(provider=definitions))
namespace = ServingNamespace(
    "serving",
    {"namespace": NAMESPACE, "tensor_parallel_sizes": [1], "control_plane_cidrs": control_plane_cidrs},
    ResourceOptions(provider=cluster),
)
servers = PrefillDecodeUnit(
    MODEL,
    {
        "release": RELEASE,
        "override": {"router": router_release},
        "control_plane_cidrs": control_plane_cidrs,
        "model": MODEL,
        "shape": "BM.GPU.MI300X.8",
        "namespace": namespace.name,
        "service_account": namespace.service_account,
        "rdma": False,  # KV cache goes through host memory, as on a cluster without virtual functions
        "inference_pool": MODEL,
        "routed": True,
        "prefill": {"replicas": 4, "tensor_parallel_size": 1},
        "decode": {"replicas": 3, "tensor_parallel_size": 1},
    },
    ResourceOptions(provider=cluster, depends_on=[namespace]),
)
router = Router(
    f"{MODEL}-router",
    {
        "release": RELEASE,
        "override": {"router": router_release},
        "control_plane_cidrs": control_plane_cidrs,
        "namespace": namespace.name,
        "model": MODEL,
        "unit": MODEL,
        "disaggregated": True,
    },
    ResourceOptions(provider=cluster, depends_on=[namespace, crds]),
)
FrontDoor(
    f"{MODEL}-front-door",
    {"release": RELEASE, "namespace": namespace.name, "model": MODEL, "routers": [f"{MODEL}-epp"]},
    ResourceOptions(provider=cluster, depends_on=[servers, router]),
)

# What a stack with further models needs (examples/second-model).
pulumi.export("cluster_id", cluster_id)
pulumi.export("kubeconfig", kubeconfig)
pulumi.export("namespace", namespace.name)
pulumi.export("service_account", namespace.service_account)
pulumi.export("url", f"http://{MODEL}.{NAMESPACE}.svc.cluster.local")
