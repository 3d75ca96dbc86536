"""Serves one more model on the cluster of another stack, of which it knows what that stack exports (StackReference)."""

import pulumi
import pulumi_kubernetes as k8s
from llmd_oke import AggregatedUnit, ModelEndpoint

NAME = "llama"

config = pulumi.Config("second-model")
same_name = f"{pulumi.get_organization()}/serving/{pulumi.get_stack()}"
serving = pulumi.StackReference(config.get("servingStack") or same_name)
namespace = serving.require_output("namespace")

cluster = k8s.Provider(
    "cluster",
    cluster_identifier=serving.require_output("cluster_id"),
    kubeconfig=serving.get_output("kubeconfig"),
    enable_patch_force=True,
)
inside = pulumi.ResourceOptions(provider=cluster)

AggregatedUnit(
    NAME,
    {
        "release": "llm-d-0.9.0",
        "model": "llama-3.3-70b-instruct-fp8-dynamic",
        "shape": "BM.GPU.MI300X.8",
        "namespace": namespace,
        "service_account": serving.require_output("service_account"),
        "rdma": False,
        "servers": {"replicas": 1, "tensor_parallel_size": 1},
    },
    inside,
)
endpoint = ModelEndpoint(f"{NAME}-endpoint", {"namespace": namespace, "model": NAME, "ready_timeout_s": 2400}, inside)
pulumi.export("url", endpoint.url)
