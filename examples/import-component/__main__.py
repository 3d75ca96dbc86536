"""Serves gpt-oss-120b from a cluster of this project's own, with components of llmd-oke and nothing else of it."""

import pulumi
import pulumi_kubernetes as k8s
from llmd_oke import AggregatedUnit, ModelEndpoint, ServingNamespace

config = pulumi.Config("chat")
cluster = k8s.Provider("cluster", cluster_identifier="chat", enable_patch_force=True)
inside = pulumi.ResourceOptions(provider=cluster)

namespace = ServingNamespace("chat", {"namespace": "chat", "tensor_parallel_sizes": [1]}, inside)
after_namespace = pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(depends_on=[namespace]))

AggregatedUnit(
    "gpt-oss-120b",
    {
        "release": "llm-d-0.9.0",
        "model": "gpt-oss-120b",
        "shape": "BM.GPU.MI300X.8",
        "namespace": namespace.name,
        "service_account": namespace.service_account,
        "rdma": False,
        "servers": {"replicas": config.get_int("replicas") or 2, "tensor_parallel_size": 1},
    },
    after_namespace,
)
endpoint = ModelEndpoint(
    "gpt-oss-120b-endpoint",
    {"namespace": "chat", "model": "gpt-oss-120b", "ready_timeout_s": 2400},
    after_namespace,
)

# A resource of this project's own, beside those of the kit.
k8s.core.v1.ConfigMap(
    "address",
    metadata={"name": "address", "namespace": "chat"},
    data={"url": endpoint.url},
    opts=after_namespace,
)
pulumi.export("url", endpoint.url)
