"""States of Terraform as oci-hpc-oke leaves them: its resource types, module addresses and keys, with invented values.

oracle-quickstart/oci-hpc-oke at 61d210a (terraform/oke-cluster.tf, oke-workers.tf, oke-addons.tf) and
oracle-terraform-modules/terraform-oci-oke at 25ef9a0 (modules/cluster, modules/network/subnets.tf, modules/workers).
"""

from collections.abc import Sequence
from typing import Any

CLUSTER_ID = "ocid1.cluster.oc1.iad.aaaa"
CP_SUBNET_ID = "ocid1.subnet.oc1.iad.cp"

Rows = Sequence[tuple[str, str, str, str, dict[str, Any]]]
"""Resources as module, type, name, key and attributes."""


def node_pool(key: str, shape: str, size: int) -> tuple[str, str, str, str, dict[str, Any]]:
    attributes: dict[str, Any] = {"id": f"ocid1.nodepool.oc1.iad.{key}", "name": key, "cluster_id": CLUSTER_ID}
    attributes |= {"node_shape": shape, "node_config_details": [{"size": size}]}
    return "module.oke.module.workers[0]", "oci_containerengine_node_pool", "tfscaled_workers", key, attributes


def cluster_network(key: str, shape: str, size: int) -> list[tuple[str, str, str, str, dict[str, Any]]]:
    module, configuration = "module.oke.module.workers[0]", f"ocid1.instanceconfiguration.oc1.iad.{key}"
    launch = [{"launch_details": [{"shape": shape}]}]
    pools = [{"size": size, "instance_configuration_id": configuration}]
    network = {"id": "ocid1.clusternetwork.oc1.iad.a", "display_name": key, "instance_pools": pools}
    return [
        (module, "oci_core_instance_configuration", "workers", key, {"id": configuration, "instance_details": launch}),
        (module, "oci_core_cluster_network", "workers", key, network),
    ]


CLUSTER = (
    "module.oke.module.cluster[0]",
    "oci_containerengine_cluster",
    "k8s_cluster",
    "",
    {
        "id": CLUSTER_ID,
        "name": "oke-gpu-quickstart-abcdef",
        "kubernetes_version": "v1.34.2",
        "endpoint_config": [{"subnet_id": CP_SUBNET_ID, "is_public_ip_enabled": True}],
    },
)
CP_SUBNET = (
    "module.oke.module.network",
    "oci_core_subnet",
    "oke",
    "cp",
    {"id": CP_SUBNET_ID, "cidr_block": "10.140.0.0/29"},
)
WORKERS_SUBNET = (
    "module.oke.module.network",
    "oci_core_subnet",
    "oke",
    "workers",
    {"id": "ocid1.subnet.oc1.iad.workers", "cidr_block": "10.140.64.0/19"},
)
NETWORK_OPERATOR = (
    "",
    "oci_containerengine_addon",
    "nvidia_network_operator",
    "0",
    {"id": "clusters/a/addons/NvidiaNetworkOperator", "addon_name": "NvidiaNetworkOperator", "cluster_id": CLUSTER_ID},
)
SYSTEM = node_pool("oke-system", "VM.Standard.E5.Flex", 3)
RDMA = node_pool("oke-rdma", "BM.GPU.MI300X.8", 2)
USUAL: Rows = (CLUSTER, CP_SUBNET, WORKERS_SUBNET, SYSTEM, RDMA, NETWORK_OPERATOR)


def state(rows: Rows = USUAL, version: int = 4) -> dict[str, Any]:
    """A `terraform.tfstate` with these resources, and a data source."""
    resources = [
        {
            **({"module": module} if module else {}),
            "mode": "managed",
            "type": type_,
            "name": name,
            "provider": 'provider["registry.terraform.io/oracle/oci"]',
            "instances": [{**({"index_key": key} if key else {}), "attributes": attributes}],
        }
        for module, type_, name, key, attributes in rows
    ]
    instances: list[dict[str, Any]] = [{"attributes": {}}]
    data = {"mode": "data", "type": "oci_containerengine_clusters", "name": "oke", "instances": instances}
    return {"version": version, "terraform_version": "1.9.8", "serial": 7, "resources": [*resources, data]}


def shown(rows: Rows = USUAL) -> dict[str, Any]:
    """The same as `terraform show -json` writes it."""

    def of(module: str) -> list[dict[str, Any]]:
        return [
            {"mode": "managed", "type": type_, "name": name, "index": key or None, "values": attributes}
            for own, type_, name, key, attributes in rows
            if own == module
        ]

    inner = sorted({row[0] for row in rows if row[0]})
    oke = {"address": "module.oke", "child_modules": [{"address": name, "resources": of(name)} for name in inner]}
    return {
        "format_version": "1.0",
        "terraform_version": "1.9.8",
        "values": {"root_module": {"resources": of(""), "child_modules": [oke]}},
    }


def guide_deployment(role: str, replicas: int, tensor_parallel_size: int, namespace: str = "llm-d") -> dict[str, Any]:
    """A Deployment as llm-d's guide makes it for AMD GPUs (guides/pd-disaggregation/modelserver/amd/vllm/nixl/base)."""
    arguments = ["openai/gpt-oss-120b", f"--tensor-parallel-size={tensor_parallel_size}", "--block-size=128"]
    container = {
        "name": "modelserver",
        "command": ["vllm", "serve"],
        "args": arguments,
        "resources": {"limits": {"amd.com/gpu": str(tensor_parallel_size), "memory": "256Gi"}},
    }
    labels = {"llm-d.ai/role": role, "llm-d.ai/guide": "pd-disaggregation", "llm-d.ai/model": "gpt-oss-120b"}
    return {
        "kind": "Deployment",
        "metadata": {"name": f"pd-disaggregation-rocm-vllm-{role}", "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


POOL = {
    "kind": "InferencePool",
    "metadata": {"name": "pd-disaggregation", "namespace": "llm-d"},
    "spec": {"selector": {"matchLabels": {"llm-d.ai/guide": "pd-disaggregation"}}},
}
ROUTE = {
    "kind": "HTTPRoute",
    "metadata": {"name": "pd-disaggregation", "namespace": "llm-d"},
    "spec": {"rules": [{"backendRefs": [{"kind": "InferencePool", "name": "pd-disaggregation"}]}]},
}


def objects(*items: dict[str, Any]) -> dict[str, Any]:
    """A list of objects as `kubectl get -o json` writes it."""
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}
