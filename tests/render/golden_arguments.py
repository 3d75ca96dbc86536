"""Optional arguments of components, each with a value that is unlike its default and unlike all others.

A case has what its component needs and what it is given beside that. Two arguments that exclude each other are in two
cases of one component.
"""

import json
from typing import Any

from golden_stacks import LEAST_ARGUMENTS
from stack_files import ocid

Arguments = dict[str, Any]

_TAINTS = [{"key": "team", "value": "search", "effect": "NoExecute"}]
_TOLERATIONS = [{"key": "team", "operator": "Equal", "value": "search", "effect": "NoExecute"}]
_MIRROR = {"registry_mirror": {"prefix": "iad.ocir.io/ai/mirror", "pull_secret": "ocir-pull"}}
_OVERRIDE = {
    "vllm_image": "registry.example/vllm:own",
    "endpoint_picker_image": "registry.example/picker:own",
    "routing_sidecar_image": "registry.example/sidecar:own",
    "proxy_image": "registry.example/envoy:own",
    "attention_backend": "ROCM_AITER_UNIFIED_ATTN",
    "quick_reduce": "INT6",
}
_TRACING = {"endpoint": "http://traces.example:4317", "sampled_share": 0.125}
_GATEWAY_PODS = {"namespace": "gateways", "labels": {"gateway": "shared"}}
_CONTROL_PLANE = {"control_plane_cidrs": ["10.140.0.16/28"]}
_TAGS = {"freeform_tags": {"team": "search"}, "defined_tags": {"Operations.CostCenter": "42"}}
_BALANCER = {
    "public": True,
    "subnet_id": ocid("subnet", "doors"),
    "security_group_ids": [ocid("networksecuritygroup", name) for name in ("doors", "audits")],
    "freeform_tags": {"team": "doors"},
    "defined_tags": {"Operations.Door": "front"},
}


def _role(name: str, **settings: str) -> Arguments:
    return {"settings": settings, "extra_args": [f"--as-{name}"], "env": {"ROLE": name}}


_ENGINE = {
    "max_model_len": 30_001,
    "max_num_seqs": 77,
    "gpu_memory_utilization": 0.71,
    "block_size": 32,
    "settings": {"max_num_batched_tokens": "8001"},
    "features": [],
    "adapters": {"slots": 3, "max_rank": 64, "host_slots": 9},
    "speculation": {"tokens": 2, "revision": "d" * 40},
    "kv_cache": {"connector": "nixl", "host_memory_gib": 33, "disk_gib": 1_111},
    "extra_args": ["--for-all-roles"],
    "env": {"OF_ALL": "1"},
    "user": {"id": 1_234, "groups": [44, 109]},
    "prefill": _role("prefill", max_num_batched_tokens="8101"),
    "decode": _role("decode", max_num_seqs="66"),
    "aggregated": _role("aggregated", gpu_memory_utilization="0.62"),
}
_CACHE = {
    "path": "/mnt/fast/models",
    "compiled_path": "/mnt/fast/compiled",
    "kv_cache_path": "/mnt/fast/kv",
    "prewarm": {"source": "object-storage", "revision": "b" * 40, "connections": 5, "belongs_to_root": True},
    "adapters": "deepseek-adapters",
    "drafts": [{"repository": "acme/draft", "revision": "c" * 40}],
}
_SHARED_CACHE = {
    **{key: value for key, value in _CACHE.items() if not key.endswith("path")},
    "claim": "models-of-all",
}
_RELEASED = {"release": "llm-d-0.10.0", "model": "deepseek-r1"}
_UNIT = {
    "override": _OVERRIDE,
    "node_taints": _TAINTS,
    "model_label": "reasoner",
    "rdma": False,
    "priority_class_prefix": "urgent",
    "inference_pool": "reasoner-pool",
    "engine": _ENGINE,
    "kv_events": True,
    "routed": True,
    "gateway": _GATEWAY_PODS,
    "model_cache": _CACHE,
    "tracing": _TRACING,
    **_CONTROL_PLANE,
}
_OVER_NODES = {
    **_UNIT,
    "override": {"router": "llm-d-0.6.0"},
    "rdma": True,
    "virtual_functions": "amd-vnic",
    "keeps_to_pools": True,
    "model_cache": _SHARED_CACHE,
    "engine": {"kv_cache": {"connector": "mori-io"}},
}


def _servers(number: int, **more: object) -> Arguments:
    return {
        "replicas": number,
        "tensor_parallel_size": 2,
        "data_parallel_size": 4,
        "expert_parallel": False,
        "autoscaled": True,
        "max_surge": number + 1,
        "max_unavailable": number + 2,
        "create_timeout_s": 7_000 + number,
        "update_timeout_s": 8_000 + number,
        **more,
    }


_ROUTER = {
    "override": _OVERRIDE,
    "version": "version-of-servers",
    "priorities": [7, -8],
    "flow_control": {
        "detector": "utilization",
        "request_ttl_s": 41,
        "bands": [{"priority": 7, "max_requests": 42, "max_mib": 43}],
        "queue_depth_threshold": 44,
        "kv_cache_util_threshold": 0.45,
        "metrics_staleness_ms": 460,
    },
    "tracing": _TRACING,
    **_CONTROL_PLANE,
}
_DOOR = {
    "override": _OVERRIDE,
    "models": [
        {
            "name": "gpt-oss-120b",
            "served_name": "openai/gpt-oss-120b",
            "hosts": ["gpt.example.com"],
            "units": [{"service": "gpt-oss-120b-epp", "weight": 13}, {"service": "gpt-oss-120b-b-epp", "weight": 29}],
            "adapters": ["sql"],
            "max_model_len": 30_001,
            "holds_back": True,
            "session_headers": ["x-own-session"],
        }
    ],
    "host": "llm.example.com",
    "priorities": {"chat": 7},
    "load_balancer": _BALANCER,
    **_CONTROL_PLANE,
}
_DOOR_LIMITS = {
    "requests_per_minute": 61,
    "tokens_per_minute": 6_200,
    "concurrent_requests": 18,
    "allowed_models": ["openai/gpt-oss-120b"],
    "clients": {
        "crawler": {
            "requests_per_minute": 71,
            "tokens_per_minute": 7_200,
            "concurrent_requests": 26,
            "models": ["sql"],
        }
    },
}
_CERTIFICATE = {
    "chain": "-----BEGIN CERTIFICATE-----\nQ0hBSU4=\n-----END CERTIFICATE-----\n",
    "key": "a private key of a test",
}
_PLACED = {"kind": "file-storage", "models": ["deepseek-r1", "llama-3.1-8b-instruct"], "namespace": "llm-d", "nodes": 3}
_FILLED: Arguments = {
    "drafts": [{"model": "deepseek-r1", "repository": "acme/draft", "revision": "c" * 40}],
    "prewarm": {"source": "object-storage", "revision": "b" * 40, "connections": 5, "belongs_to_root": True},
    "revisions": {"deepseek-r1": "e" * 40},
    "node_taints": _TAINTS,
    "adapted_models": [
        {
            "name": "llama",
            "model": "llama-3.1-8b-instruct",
            "max_rank": 64,
            "adapters": [
                {"name": "sql", "served_name": "sql-aaaa", "repository": "acme/llama-sql", "revision": "a" * 40}
            ],
        }
    ],
    "source_url": "https://objectstorage/p/link/n/tenancy/b/models/o/",
    "timeout_s": 4_321,
}
_TESTED_POOL: Arguments = {
    "name": "mi300x",
    "shape": "BM.GPU.MI300X.8",
    "pool_id": ocid("nodepool"),
    "nodes": 2,
    "needed": 2,
    "on_failure": "hold",
    "checks": ["gpus"],
    "limits": {
        "gpus": 8,
        "virtual_functions": 0,
        "gid_index": 3,
        "mtu_bytes": 4_096,
        "link_gb_per_s": 40.0,
        "all_reduce_gb_per_s": 300.0,
        "all_reduce_alone_gb_per_s": 250.0,
        "least_carried_share": 0.9,
    },
    "limit_s": 1_800,
}
_TESTED_DISKS = {
    "memory_gb_per_s": 3_210.0,
    "matrix_tflops": 543.0,
    "disks": 7,
    "disk_bytes": 3_456_000_000_000,
    "disk_gb_per_s": 23.0,
}
_BENCHED = {
    "namespace": "llm-d",
    "model": "gpt-oss-120b",
    "image": "registry.example/vllm:own",
    "shape": "BM.GPU.MI300X.8",
    "request": json.dumps({"prompts": 3}),
}

SERVING_ARGUMENTS: dict[str, tuple[Arguments, Arguments]] = {
    "Acceptance": (
        {"image": "registry.example/vllm:own", "pools": [_TESTED_POOL]},
        {
            "pools": [
                {
                    **_TESTED_POOL,
                    "checks": ["gpus", "memory", "matrix-products", "disks"],
                    "limits": {**_TESTED_POOL["limits"], **_TESTED_DISKS},
                    "node_taints": _TAINTS,
                    "disk_folder": "/mnt/fast",
                }
            ],
            "system_pool_name": "system-of-ours",
            **_MIRROR,
        },
    ),
    "AggregatedUnit": (
        LEAST_ARGUMENTS["AggregatedUnit"] | _RELEASED,
        {**_UNIT, "servers": _servers(3)},
    ),
    "AggregatedUnit behind a front door": (
        LEAST_ARGUMENTS["AggregatedUnit"],
        {
            "signed_in": True,
            "model_cache": _SHARED_CACHE,
            "engine": {"speculation": {"tokens": 2, "revision": "d" * 40}},
            **_CONTROL_PLANE,
        },
    ),
    "AggregatedUnit over nodes": (
        LEAST_ARGUMENTS["AggregatedUnit"] | _RELEASED,
        {**_OVER_NODES, "servers": _servers(3, nodes=2, data_parallel_size=8)},
    ),
    "AggregatedUnit over nodes without RDMA": (
        LEAST_ARGUMENTS["AggregatedUnit"] | {"servers": {**_servers(3), "nodes": 2}},
        {"rdma": False},
    ),
    "Canary": (_BENCHED, {"node_taints": _TAINTS}),
    "FrontDoor": (
        LEAST_ARGUMENTS["FrontDoor"],
        {"override": _OVERRIDE, "holds_back": True, "session_headers": ["x-own-session"]},
    ),
    "Gateway": (
        LEAST_ARGUMENTS["Gateway"],
        {
            "class_name": "own-class",
            "listeners": [{"name": "secure", "port": 8_443, "host": "gpt.example.com", "tls_secret": "certificate"}],
            "load_balancer": _BALANCER,
            "route_headers": {"X-Team": ["search"]},
            "largest_body_mib": 21,
        },
    ),
    "Gateway of Envoy": (
        {**LEAST_ARGUMENTS["Gateway"], "provider": "envoy-gateway"},
        {"class_name": "own-class", "load_balancer": {**_BALANCER, "public": False}, "largest_body_mib": 21},
    ),
    "ImagePull": (
        {"namespace": "llm-d", "image": "registry.example/vllm:own", "shape": "BM.GPU.MI300X.8", "nodes": 2},
        {"node_taints": _TAINTS},
    ),
    "ModelCache": (
        LEAST_ARGUMENTS["ModelCache"] | {"models": _PLACED["models"]},
        {
            **_FILLED,
            "prewarm": {**_FILLED["prewarm"], "belongs_to_root": False},
            "path": "/mnt/fast/models",
            "compiled_path": "/mnt/fast/compiled",
            "kv_cache_path": "/mnt/fast/kv",
        },
    ),
    "ModelCache in a volume": (
        LEAST_ARGUMENTS["ModelCache"] | _PLACED | {"volume_handle": "a:10.0.0.8:/models"},
        {
            **_FILLED,
            "volume_handle": "b:10.0.0.9:/models",
            "volume_name": "models-of-all",
            "capacity_gib": 4_321,
        },
    ),
    "ModelEndpoint": (
        LEAST_ARGUMENTS["ModelEndpoint"],
        {"ready_timeout_s": 432, "front_door": {"version": "version-of-door", "port": 10_123}},
    ),
    "ModelMonitoring": (
        LEAST_ARGUMENTS["ModelMonitoring"],
        {
            "routers": ["gpt-oss-120b-a"],
            "disaggregated": True,
            "rdma": True,
            "canaries": True,
            "leader": True,
            "slo_ttft_s": {"gpt-oss-120b": 1.25},
            "usd_per_gpu_hour": 6.5,
            "endpoint_picker": "v0.7.1",
            "labels": {"release": "prometheus-of-ours"},
        },
    ),
    "ModelRoute": (
        LEAST_ARGUMENTS["ModelRoute"],
        {
            "listener": "secure",
            "cluster_listener": "inside",
            "hosts": ["gpt.example.com"],
            "headers": {"X-Team": "search"},
            "path": "/gpt",
            "timeout_s": 123,
            "largest_body_mib": 21,
        },
    ),
    "ModelRoute of Envoy": (
        {**LEAST_ARGUMENTS["ModelRoute"], "provider": "envoy-gateway"},
        {"headers": {"X-Team": "search"}, "timeout_s": 0, "largest_body_mib": 21},
    ),
    "ModelScaling": (
        LEAST_ARGUMENTS["ModelScaling"],
        {
            "servers": {
                "prefill": {"min_replicas": 3, "max_replicas": 12, "share": 3, "prompt_tokens_per_s": 20_001},
                "decode": {"min_replicas": 2, "max_replicas": 8, "share": 2, "requests": 41, "kv_cache_usage": 0.72},
            },
            "prometheus": "http://prometheus.example:9090",
            "scale_up_window_s": 33,
            "scale_down_window_s": 444,
        },
    ),
    "PrefillDecodeUnit": (
        LEAST_ARGUMENTS["PrefillDecodeUnit"] | _RELEASED,
        {**_UNIT, "prefill": _servers(3), "decode": _servers(30)},
    ),
    "PrefillDecodeUnit over nodes": (
        LEAST_ARGUMENTS["PrefillDecodeUnit"] | _RELEASED,
        {**_OVER_NODES, "prefill": _servers(3, nodes=2, data_parallel_size=8), "decode": _servers(30, nodes=1)},
    ),
    "PrefillDecodeUnit in a set": (
        LEAST_ARGUMENTS["PrefillDecodeUnit"] | _RELEASED,
        {
            **_OVER_NODES,
            "prefill": _servers(3),
            "decode": _servers(30),
            "disaggregated_set": True,
            "routed": False,
            "gateway": None,
            "signed_in": True,
        },
    ),
    "Router": (
        LEAST_ARGUMENTS["Router"],
        {
            **_ROUTER,
            "profile": "prefix-affinity",
            "non_cached_tokens": 17,
            "peak_prefill_tokens_per_s": 12_345.0,
            "replicas": 5,
            "signed_in": True,
            "cache_salts": True,
        },
    ),
    "Router behind a gateway": (
        LEAST_ARGUMENTS["Router"],
        {
            **_ROUTER,
            "profile": "precise-prefix",
            "decider": "always",
            "reported": {"model": "openai/gpt-oss-120b", "block_size": 48},
            "gateway": _GATEWAY_PODS,
            "flow_control": {"detector": "concurrency", "request_ttl_s": 41, "bands": [], "max_concurrency": 47},
        },
    ),
    "Router with a configuration": (
        LEAST_ARGUMENTS["Router"],
        {
            "override": {"router": "llm-d-0.6.0"},
            "config": "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: own}]\n",
        },
    ),
    "ServingNamespace": (
        {"namespace": "llm-d", "tensor_parallel_sizes": [1]},
        {
            "destinations": [{"cidr": "203.0.113.0/24", "ports": [8_443]}, {"cidr": "198.51.100.0/24"}],
            "hugging_face_token": "a token of a test",
            **_CONTROL_PLANE,
        },
    ),
    "SmokeBenchmark": (
        {**_BENCHED, "facts": "{}", "measured": "0a1b2c3d", "timeout_s": 600},
        {"node_taints": _TAINTS},
    ),
    "StackFrontDoor": (
        LEAST_ARGUMENTS["StackFrontDoor"],
        {
            **_DOOR,
            **_DOOR_LIMITS,
            "certificate": _CERTIFICATE,
            "api_keys": {"chat": "first-key-of-chat", "crawler": "first-key-of-crawler"},
            "next_api_keys": {"chat": "next-key-of-chat"},
            "cache_secret": "0f1e2d3c4b5a69788796a5b4c3d2e1f0aabbccdd9e8f7a6b",
        },
    ),
    "StackFrontDoor with a Secret": (
        LEAST_ARGUMENTS["StackFrontDoor"],
        {
            **_DOOR,
            "override": {"router": "llm-d-0.6.0"},
            "load_balancer": {"public": False},
            "certificate_secret": "certificate-of-ours",
            "tokens": {
                "issuer": "https://id.example.com",
                "audiences": ["llm"],
                "key_set": json.dumps({"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}),
            },
        },
    ),
    "StackFrontDoor with an issuer": (
        LEAST_ARGUMENTS["StackFrontDoor"],
        {
            **_DOOR,
            **_DOOR_LIMITS,
            "load_balancer": None,
            "issuer": {"name": "internal", "kind": "ClusterIssuer"},
            "tokens": {
                "issuer": "https://id.example.com",
                "audiences": ["llm"],
                "key_set_uri": "https://id.example.com/jwks.json",
            },
        },
    ),
}

_NODES = {
    "cluster": {
        "cluster_id": ocid("cluster", "joined"),
        "compartment_id": ocid("compartment", "joined"),
        "api_server_host": "10.140.0.6",
        "ca_certificate": "T1dO",
        "tenancy_id": ocid("tenancy", "joined"),
    },
    "network": {
        "worker_subnet_id": ocid("subnet", "nodes"),
        "worker_nsg_ids": [ocid("networksecuritygroup", "nodes")],
        "pod_subnet_id": ocid("subnet", "of-pods"),
        "pod_nsg_ids": [ocid("networksecuritygroup", "of-pods")],
    },
    "pool_name": "pool-of-ours",
    "compartment_id": ocid("compartment", "nodes"),
    "boot_volume_gib": 321,
    "max_pods": 43,
    "labels": {"team": "search"},
    "taints": [*_TAINTS, {"key": "slow", "effect": "NoSchedule"}],
    "ssh_public_key": "ssh-ed25519 BBBB",
    "protect": True,
    **_TAGS,
}
_CYCLED = {"cycling": {"mode": "replace-boot-volume", "max_surge": "3", "max_unavailable": "25%"}}
_CPU_NODES = {**_NODES, **_CYCLED, "image_id": ocid("image", "own"), "ocpus": 7.0, "memory_gib": 54.0}
_GPU_NODES = {
    **_NODES,
    "compute_cluster_id": ocid("computecluster"),
    "fault_domains": ["FAULT-DOMAIN-2", "FAULT-DOMAIN-3"],
    "capacity_reservation_id": ocid("capacityreservation"),
    "boot_volume_kms_key_id": ocid("key", "volumes"),
    "nvme": "raid-0",
    "huge_pages_gib": 17,
    "topology_manager_policy": "restricted",
    "topology_manager_scope": "pod",
    "file_storage": True,
    "rdma_in_pods": True,
}
_HOME = {
    "region": "us-ashburn-1",
    "home_region": "eu-frankfurt-1",
    "ignored_tags": ["Audit.Owner"],
    "display_name": "named-by-us",
    **_TAGS,
}
_NEEDS = [
    *("cluster-encryption", "host-groups", "capacity-reservations", "custom-images", "boot-volume-encryption"),
    *("boot-volume-encryption-of-managed-pools", "file-storage", "cluster-autoscaler", "ocir", "defined-tags"),
]
_GRANTED = {
    **_HOME,
    "cluster_id": ocid("cluster", "granted"),
    "network_compartment_id": ocid("compartment", "network"),
    "image_compartment_id": ocid("compartment", "images"),
    "key_compartment_id": ocid("compartment", "keys"),
    "reservation_compartment_id": ocid("compartment", "reservations"),
    "tag_namespace_compartment_id": ocid("compartment", "tags"),
    "resource_ids": {
        "cluster_key_id": [ocid("key", "secrets")],
        "boot_volume_key_id": [ocid("key", "volumes")],
        "managed_boot_volume_key_id": [ocid("key", "managed-volumes")],
        "host_group_id": [ocid("computehostgroup", name) for name in ("one", "two")],
        "tag_namespace": ["Operations"],
    },
}
_IAM = LEAST_ARGUMENTS["Iam"] | {
    "needs": _NEEDS,
    "resource_ids": {name: [ocid("thing")] for name in _GRANTED["resource_ids"]},
}
_NETWORK = LEAST_ARGUMENTS["Network"]
_SERVICES = {
    "services_gateway_id": ocid("service", "of-region"),
    "services_gateway_cidr": "all-phx-services-in-oracle-services-network",
}
_CREATED_IN = {"compartment_id": ocid("compartment", "storage"), "availability_domain": "Uocm:US-ASHBURN-AD-2"}
_STORED = {
    **_CREATED_IN,
    "subnet_id": ocid("subnet", "files"),
    "nsg_ids": [ocid("networksecuritygroup", "files")],
    **_TAGS,
}
_ALARMS = [
    {
        "name": "node-down",
        "namespace": "oci_oke",
        "query": 'NodeState[1m]{clusterId = "$cluster_id"}.count() < 2',
        "pending": "PT7M",
        "severity": "WARNING",
        "says": "A node is down.",
    }
]
_KUBECONFIG = json.dumps(
    {
        "clusters": [{"cluster": {"server": "https://10.140.0.7:6443", "certificate-authority-data": "T1dO"}}],
        "users": [{"user": {"token": "a token of a test"}}],
    }
)

CLUSTER_ARGUMENTS: dict[str, tuple[Arguments, Arguments]] = {
    "AddOns": (
        {"cluster_id": ocid("cluster"), "add_ons": [{"name": "NodeProblemDetector"}]},
        {
            "add_ons": [
                {"name": "NodeProblemDetector", "version": "v0.8.20", "configurations": {"numOfReplicas": "3"}},
            ]
        },
    ),
    "Budget": (LEAST_ARGUMENTS["Budget"], _HOME),
    "Budget at home": (LEAST_ARGUMENTS["Budget"], {"region": "us-ashburn-1", "home_region": "us-ashburn-1"}),
    "Budget of a provider at home": (LEAST_ARGUMENTS["Budget"], {"provider_is_home": True}),
    "CpuPool": (LEAST_ARGUMENTS["CpuPool"], {**_CPU_NODES, "autoscaled": True}),
    "GpuPool": (
        LEAST_ARGUMENTS["GpuPool"],
        {
            **_GPU_NODES,
            **_CYCLED,
            "launch": "managed-compute-cluster",
            "autoscaled": True,
            "host_group_id": ocid("computehostgroup"),
            "eviction_grace_minutes": 37,
        },
    ),
    "GpuPool of a cluster network": (
        LEAST_ARGUMENTS["GpuPool"] | {"launch": "cluster-network"},
        {**_GPU_NODES, "fault_domains": None, "boot_volume_vpus_per_gb": 30, "agent_logs": True},
    ),
    "GpuPool of instances": (
        LEAST_ARGUMENTS["GpuPool"] | {"launch": "compute-cluster-instances"},
        {**_GPU_NODES, "boot_volume_vpus_per_gb": 30, "agent_logs": True},
    ),
    "GpuPool of others": (LEAST_ARGUMENTS["GpuPool"], {"pool_id": ocid("nodepool", "of-others")}),
    "Iam": (
        _IAM,
        {
            **_GRANTED,
            "domain": "Engineering",
            "domain_url": "https://idcs-of-ours.identity.oraclecloud.com:443",
            "node_tag": {"name": "Operations.Role", "value": "node"},
        },
    ),
    "Iam without domains": (
        _IAM,
        {
            **_GRANTED,
            "style": "classic",
            "provider_is_home": True,
            "node_tag": {"name": "Operations.Role", "value": "node"},
        },
    ),
    "Iam of existing groups": (
        _IAM,
        {"dynamic_group_ids": {group: ocid("dynamicgroup", group) for group in ("nodes", "clusters")}},
    ),
    "Network": (
        _NETWORK,
        {
            "cidr": "10.150.0.0/16",
            "public_load_balancers": True,
            "public_load_balancer_cidrs": ["198.51.100.0/24"],
            "bastion": True,
            "bastion_client_cidrs": ["203.0.113.0/24"],
            "bastion_host_cidrs": ["203.0.113.128/25"],
            "operator": True,
            "file_storage": True,
            "lustre": True,
            "worker_internet": False,
            "display_name": "named-by-us",
            "protect": True,
            **_SERVICES,
            **_TAGS,
        },
    ),
    "Network with a public API": (
        _NETWORK,
        {
            "cni": "flannel",
            "api_access": "public",
            "api_allowed_cidrs": ["192.0.2.0/24"],
            "bastion": False,
        },
    ),
    "Network without internet": (_NETWORK, {"pod_internet": False, "worker_internet": False}),
    "Network of others": (
        _NETWORK,
        {
            "vcn_id": ocid("vcn", "of-others"),
            "cidr": "10.150.0.0/16",
            "bastion_id": ocid("bastion", "of-others"),
            "bastion_subnet_cidr": "10.150.9.0/28",
            "subnet_ids": {role: ocid("subnet", f"{role}-of-others") for role in ("bastion", "pods")},
            "nsg_ids": {role: ocid("networksecuritygroup", f"{role}-of-others") for role in ("pods", "workers")},
            "route_table_ids": {kind: ocid("routetable", f"{kind}-of-others") for kind in ("private", "public")},
            "public_load_balancers": True,
        },
    ),
    "NodeGate": (
        {
            "pool_name": "mi300x",
            "nodes": 2,
            "devices": {"amd.com/gpu": 8},
            "timeout_s": 900,
            "system_pool_name": "system",
            "pool_id": ocid("nodepool"),
        },
        {"once": True, "rdma_in_pods": True},
    ),
    "NodeImage": (LEAST_ARGUMENTS["NodeImage"], _TAGS),
    "OciMonitoring": (
        LEAST_ARGUMENTS["OciMonitoring"],
        {
            "display_name": "named-by-us",
            "alarms": _ALARMS,
            "recipients": ["ops@example.com", "gpu@example.com"],
            "retention_days": 60,
            "control_plane": True,
            "nodes_group_id": ocid("dynamicgroup", "nodes"),
            **_TAGS,
        },
    ),
    "OciMonitoring with a topic": (
        LEAST_ARGUMENTS["OciMonitoring"],
        {"alarms": _ALARMS, "topic_id": ocid("onstopic", "of-others")},
    ),
    "OkeCluster": (
        LEAST_ARGUMENTS["OkeCluster"],
        {
            "network": {
                "vcn_id": ocid("vcn", "own"),
                "api_subnet_id": ocid("subnet", "own-api"),
                "api_nsg_ids": [ocid("networksecuritygroup", "own-api")],
                "load_balancer_subnet_ids": [ocid("subnet", "own-load-balancers")],
            },
            "cluster_name": "named-by-us",
            "tenancy_id": ocid("tenancy", "own"),
            "public_api": True,
            "flannel": True,
            "pods_cidr": "10.201.0.0/16",
            "services_cidr": "10.202.0.0/16",
            "kms_key_id": ocid("key", "secrets"),
            "image_policy_key_ids": [ocid("key", name) for name in ("images", "more-images")],
            "oidc": {
                "issuer_url": "https://id.example.com",
                "client_id": "kubernetes",
                "username_claim": "email",
                "username_prefix": "user:",
                "groups_claim": "teams",
                "groups_prefix": "team:",
                "required_claims": {"hd": "example.com"},
            },
            "oidc_discovery": False,
            "protect": True,
            **_TAGS,
        },
    ),
    "OkeCluster of others": (
        LEAST_ARGUMENTS["OkeCluster"],
        {
            "cluster_id": ocid("cluster", "of-others"),
            "kubeconfig": _KUBECONFIG,
            "api_server": "https://127.0.0.1:16443",
        },
    ),
    "Storage": (
        LEAST_ARGUMENTS["Storage"],
        {**_STORED, "capacity_gb": 62_400, "performance_tier": "MBPS_PER_TB_500", "file_system_name": "weights"},
    ),
    "Storage with NFS": (
        LEAST_ARGUMENTS["Storage with NFS"],
        {**_STORED, "client_cidr": "10.150.0.0/16", "export_path": "/weights"},
    ),
    "Storage of others": (
        LEAST_ARGUMENTS["Storage"],
        {"existing_volume_handle": "10.0.0.9@tcp:/weights"},
    ),
    "SystemPool": (LEAST_ARGUMENTS["SystemPool"], _CPU_NODES),
}

OPERATOR_ARGUMENTS: dict[str, tuple[Arguments, Arguments]] = {
    "AmdGpuOperator": ({}, {"node_selector": {"gpus": "amd"}, "tolerations": _TOLERATIONS, **_MIRROR}),
    "CertManager": ({}, _MIRROR),
    "LeaderWorkerSetController": ({}, _MIRROR),
    "NodeFeatureDiscovery": ({}, {"tolerations": _TOLERATIONS, **_MIRROR}),
    "PrometheusStack": ({}, _MIRROR),
}

ALL_ARGUMENTS = SERVING_ARGUMENTS | CLUSTER_ARGUMENTS | OPERATOR_ARGUMENTS
