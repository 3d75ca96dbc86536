"""Stacks of the golden files: for each component one that has it, and choices of the stack file that change objects."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from created_cluster import cluster_layer, created, with_network
from llmd_oke.catalogue.cluster import image_names
from stack_files import DOMAIN, StackObject, existing_cluster, existing_pool, model, ocid, read, stack

Choice = Mapping[str, Any]
"""What is other than in the rehearsal's stack: keys of its model, and by `stack` of itself."""


def varied_stack(choice: Choice) -> StackObject:
    """The rehearsal's stack with a choice."""
    own = copy.deepcopy({**read("rehearsal"), **choice.get("stack", {})})
    own["models"][0].update({key: value for key, value in choice.items() if key != "stack"})
    return own


BASELINE: Choice = {"topology": "agg-tp1-16r", "router": {"mode": "none"}}
NODE_DISK: Choice = {"stack": {"storage": {"modelCache": {"kind": "node-disk", "path": "/mnt/nvme/models"}}}}
TWO_NODES = [{"name": "mi300x", "shape": "BM.GPU.MI300X.8", "size": 2}]
SCALING = {
    "prefill": {"minReplicas": 4, "maxReplicas": 16, "promptTokensPerS": 20000},
    "decode": {"minReplicas": 2, "maxReplicas": 8, "requests": 40, "kvCacheUsage": 0.8},
}

FRONT_DOOR: Choice = {
    "copies": 2,
    "topology": "2p-tp1-2d-tp2",
    "stack": {
        "frontDoor": {
            "exposure": "internal",
            "host": "llm.example.com",
            "hosts": {"gpt.example.com": "gpt-oss-120b"},
            "tls": {"kind": "issuer", "name": "internal"},
            "weights": {"gpt-oss-120b-0": 90, "gpt-oss-120b-1": 10},
        }
    },
}

GATEWAY: Choice = {
    "router": {"mode": "gateway", "route": {"hosts": ["gpt.example.com"], "headers": {"X-Team": "a"}}},
    "stack": {"gateway": {"mode": "create", "provider": "istio", "host": "gpt.example.com", "tls": "certificate"}},
}

COMPONENTS: dict[str, Choice] = {
    "AggregatedUnit": BASELINE,
    "Canary": {"stack": {"monitoring": "existing", "canaries": {}}},
    "FrontDoor": {},
    "Gateway": GATEWAY,
    "ImagePull": {},
    "ModelCache": NODE_DISK,
    "ModelEndpoint": BASELINE,
    "ModelMonitoring": {"stack": {"monitoring": "existing"}, "slo": {"ttftMs": 2000, "itlMs": 25}},
    "ModelRoute": GATEWAY,
    "ModelScaling": {"scaling": SCALING},
    "PrefillDecodeUnit": {},
    "Router": {},
    "ServingNamespace": {},
    "SmokeBenchmark": {},
    "StackFrontDoor": FRONT_DOOR,
}

IMAGE = {"name": image_names()[0], "uri": "https://objectstorage/o/image.oci", "checksum": "md5:" + "a" * 32}
TAINT = {"key": "routers", "value": "only", "effect": "NoSchedule"}
CLUSTER = created(
    cluster={
        "network": {
            "bastionService": {"clientCidrs": ["203.0.113.0/24"]},
            "bastion": True,
            "bastionHostCidrs": ["203.0.113.0/24"],
            "operator": True,
            "publicLoadBalancers": True,
            "publicLoadBalancerCidrs": ["198.51.100.0/24"],
        },
        "addOns": [{"name": "NodeProblemDetector", "configurations": {"numOfReplicas": "2"}}],
        "kmsKeyId": ocid("key"),
        "imagePolicy": {"kmsKeyIds": [ocid("key", "images")]},
        "oidc": {"issuerUrl": "https://token.example.com", "clientId": "kubernetes", "groupsClaim": "groups"},
        "nodeRepair": "on-request",
        "sshPublicKey": "ssh-ed25519 AAAA",
    },
    pool={"image": {"import": IMAGE}, "labels": {"team": "a"}, "taints": [TAINT], "hugePagesGib": 16},
    cpuPools=[
        {"name": "routers", "shape": "VM.Standard.E5.Flex", "labels": {"team": "a"}, "taints": [TAINT]},
        {
            "name": "builds",
            "shape": "VM.Standard.E5.Flex",
            "scaling": {"mode": "cluster-autoscaler", "minSize": 1, "maxSize": 3},
        },
    ],
    storage={"modelCache": {"kind": "lustre"}},
    gpuStack="helm-operator",
    monitoring="install",
    leaderWorkerSets="install",
    networkPolicies={"engine": "calico"},
    budget={"monthlyAmount": 1000, "recipients": ["ops@example.com"], "alerts": [{"percent": 99.5, "of": "forecast"}]},
    ociMonitoring={"alarms": {"recipients": ["ops@example.com"]}, "logs": {"pods": True}},
    tags={"freeform": {"team": "a"}, "defined": {"Operations": {"CostCenter": "42"}}},
)
"""A stack that creates its cluster, with each part that there is."""

ADAPTERS = [{"name": "sql", "repository": "acme/llama-sql", "revision": "a" * 40}]
ADAPTED = stack(
    model("1p-tp1-1d-tp1", model="llama-3.1-8b-instruct", engine={"adapters": {}}, adapters=ADAPTERS),
    nodes=1,
    storage={"modelCache": {"kind": "node-disk"}},
)

CREATED: dict[str, StackObject] = {
    "Acceptance": created(),
    "AdapterNames": ADAPTED,
    "AddOns": CLUSTER,
    "AmdGpuOperator": CLUSTER,
    "Budget": CLUSTER,
    "Calico": CLUSTER,
    "CertManager": CLUSTER,
    "CpuPool": CLUSTER,
    "GpuPool": CLUSTER,
    "Iam": CLUSTER,
    "LeaderWorkerSetController": cluster_layer(leaderWorkerSets="install"),
    "Network": CLUSTER,
    # To an RDMA network an add-on brings it.
    "NodeFeatureDiscovery": cluster_layer(rdma="none", gpuStack="helm-operator"),
    "NodeGate": CLUSTER,
    "NodeImage": CLUSTER,
    "NodeRepair": CLUSTER,
    "OciMonitoring": CLUSTER,
    "OkeCluster": CLUSTER,
    "PrometheusStack": cluster_layer(monitoring="install"),
    "RdmaNetwork": CLUSTER,
    "Storage": CLUSTER,
    "SystemPool": CLUSTER,
}
"""Components of stacks that create their clusters, or that all stacks of a cluster share."""

CREATED_CHOICES: dict[str, tuple[tuple[str, ...], StackObject]] = {
    "cluster-network": (("GpuPool",), with_network(pool={"launch": "cluster-network"})),
    "compute-cluster-instances": (
        ("GpuPool", "NodeGate"),
        with_network(pool={"launch": "compute-cluster-instances", "size": 2}, models=[model("2p-tp1-2d-tp2")]),
    ),
    "existing-pool": (
        ("Storage", "GpuPool", "NodeGate"),
        with_network(pool={"poolId": ocid("nodepool")}, storage={"modelCache": {"kind": "file-storage"}}),
    ),
    "file-storage": (("Storage", "Network"), with_network(storage={"modelCache": {"kind": "file-storage"}})),
    "one-alarm-topic": (
        ("OciMonitoring",),
        with_network(ociMonitoring={"alarms": {"topicId": ocid("onstopic"), "leftOut": ["no-node-for-pods"]}}),
    ),
    "public-api-server": (
        ("OkeCluster", "Network"),
        with_network(
            cluster={"apiEndpoint": {"access": "public", "allowedCidrs": ["203.0.113.0/24"]}, "cni": "flannel"}
        ),
    ),
}
"""What one choice changes in the resources of a created cluster."""


@dataclass(frozen=True)
class Change:
    """A choice of the stack file, the components whose objects it changes, and what it is compared with. `secrets` are
    settings that the stack needs.
    """

    components: tuple[str, ...]
    choice: Choice
    base: Choice = field(default_factory=dict[str, Any])
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])


WIDE = "1p-tp1dp16ep-1d-tp1dp16ep"
SERVERS = ("PrefillDecodeUnit",)
SMALL: Choice = {"topology": "1p-tp1-1d-tp1"}
LATEST = {"release": "llm-d-0.10.0"}
DOOR: Choice = {"stack": {"frontDoor": {"uncheckedPods": "accepted"}}}
KEYS = {"chat": "sk-chat-Qm7xT2vKd9RwZb4H", "crawler": "sk-crawler-8Hq2LmZx7PdWvN3c"}


FLOW = {
    "queueDepthThreshold": 2,
    "kvCacheUtilThreshold": 0.7,
    "metricsStalenessMs": 300,
    "priorityBands": [{"priority": -10, "maxMib": 1, "maxRequests": 5}],
}


def _door(**changes: object) -> Choice:
    """The rehearsal's stack behind a front door for the stack, with these changes of it."""
    return {"stack": {"frontDoor": {"uncheckedPods": "accepted", **changes}}}


CHOICES: dict[str, Change] = {
    "adapters": Change(
        ("PrefillDecodeUnit", "Router", "ModelCache", "SmokeBenchmark"),
        {
            "model": "llama-3.1-8b-instruct",
            "engine": {"adapters": {"slots": 2, "maxRank": 32}},
            "adapters": ADAPTERS,
            **NODE_DISK,
        },
        {"model": "llama-3.1-8b-instruct", **NODE_DISK},
    ),
    "aggregated-servers": Change(("Router", "SmokeBenchmark"), {"topology": "agg-tp1-16r"}),
    "aggregated-servers-without-a-router": Change(("SmokeBenchmark",), {**BASELINE, "stack": {"smoke": {}}}),
    "api-server-anywhere": Change(
        ("PrefillDecodeUnit", "Router"), {"stack": {"cluster": {"mode": "existing", "identifier": "rehearsal"}}}
    ),
    "another-model": Change(
        ("PrefillDecodeUnit", "SmokeBenchmark"),
        {"model": "llama-3.3-70b-instruct-fp8-dynamic", "name": "gpt-oss-120b"},
    ),
    "behind-a-gateway": Change(("PrefillDecodeUnit", "Router", "SmokeBenchmark"), GATEWAY),
    "clients-with-keys": Change(
        ("StackFrontDoor", "ModelEndpoint", "Router"),
        {
            **_door(
                authentication={"kind": "api-keys"},
                limits={
                    "requestsPerMinute": 60,
                    "clients": {"chat": {"tokensPerMinute": 6000, "concurrentRequests": 8, "models": ["gpt-oss-120b"]}},
                },
                priorities={"chat": 100, "crawler": -10},
                cacheIsolation="client",
            ),
            "router": {"flowControl": FLOW},
        },
        DOOR,
        {"frontDoorKeys": json.dumps(KEYS), "frontDoorCacheSecret": "0f1e2d3c4b5a69788796a5b4c3d2e1f0aabbccdd9e8f7a6b"},
    ),
    "clients-with-tokens": Change(
        ("StackFrontDoor",),
        _door(
            host="llm.example.com",
            tls={"kind": "secret", "name": "certificate"},
            authentication={
                "kind": "jwt",
                "issuer": "https://id.example.com",
                "audiences": ["llm"],
                "jwksUri": "https://id.example.com/jwks.json",
            },
            exposure="public",
            loadBalancer={
                "subnetId": ocid("subnet"),
                "securityGroupIds": [ocid("networksecuritygroup", name) for name in "ab"],
            },
        ),
        DOOR,
    ),
    "clients-with-tokens-of-a-key-set": Change(
        ("StackFrontDoor",),
        _door(authentication={"kind": "jwt", "issuer": "https://id.example.com", "audiences": ["llm"]}),
        DOOR,
        {"frontDoorKeySet": json.dumps({"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]})},
    ),
    "copies": Change(("FrontDoor", "SmokeBenchmark"), {"copies": 2}),
    "disaggregated-set": Change(
        SERVERS, {"topology": WIDE, "disaggregatedSet": True, "stack": LATEST}, {"topology": WIDE, "stack": LATEST}
    ),
    "engine-user": Change(SERVERS, {"engine": {"user": {"id": 1000, "groups": [44, 109]}}}),
    "file-storage-of-others": Change(
        ("PrefillDecodeUnit", "ModelCache"),
        {
            "stack": {
                "storage": {
                    "modelCache": {
                        "kind": "file-storage",
                        "existing": {
                            "fileSystemId": ocid("filesystem"),
                            "mountTargetIp": "10.0.0.9",
                            "exportPath": "/models",
                        },
                    }
                }
            }
        },
        NODE_DISK,
    ),
    "front-door-of-the-stack": Change(("ModelEndpoint",), FRONT_DOOR),
    "full-nodes": Change(("ImagePull", "PrefillDecodeUnit", "Router"), {"stack": {"gpuPools": TWO_NODES}}),
    "gateway-of-others": Change(
        ("ModelRoute", "Router"),
        {
            "router": {"mode": "gateway", "route": {"hosts": ["gpt.example.com"], "path": "/gpt", "timeoutS": 300}},
            "stack": {
                "gateway": {
                    "mode": "existing",
                    "provider": "envoy-gateway",
                    "name": "shared",
                    "namespace": "gateways",
                    "listener": "https",
                    "clusterListener": "cluster",
                    "service": {"name": "shared", "namespace": "gateways"},
                }
            },
        },
        GATEWAY,
    ),
    "gateway-without-istio": Change(
        ("Gateway",),
        {**GATEWAY, "stack": {"gateway": {**GATEWAY["stack"]["gateway"], "provider": "envoy-gateway"}}},
        GATEWAY,
    ),
    "kv-cache-in-memory-and-on-disk": Change(
        SERVERS,
        {
            "topology": "2p-tp1-1d-tp2",
            "engine": {"kvCache": {"hostMemoryGib": 32, "diskGib": 1000}},
            "stack": {**LATEST, **NODE_DISK["stack"]},
        },
        {"topology": "2p-tp1-1d-tp2", "stack": {**LATEST, **NODE_DISK["stack"]}},
    ),
    "larger-decode-servers": Change(("PrefillDecodeUnit", "ServingNamespace"), {"topology": "8p-tp1-2d-tp4"}),
    "latest-release": Change(("PrefillDecodeUnit", "Router"), {"stack": LATEST}),
    "linear-attention": Change(
        SERVERS, {"model": "nemotron-3-nano-30b-a3b", "name": "gpt-oss-120b", "stack": LATEST}, {"stack": LATEST}
    ),
    "lustre-of-others": Change(
        ("ModelCache",),
        {
            "stack": {
                "storage": {
                    "modelCache": {
                        "kind": "lustre",
                        "existing": {"managementIp": "10.0.0.9", "fileSystemName": "models"},
                    }
                }
            }
        },
        NODE_DISK,
    ),
    "model-cache": Change(SERVERS, NODE_DISK),
    "no-rdma": Change(
        ("PrefillDecodeUnit", "SmokeBenchmark"),
        {"stack": {"rdma": "none", "gpuPools": [{**TWO_NODES[0], "size": 1}]}, "topology": "2p-tp1-2d-tp2"},
    ),
    "oldest-router": Change(("PrefillDecodeUnit", "Router"), {"stack": {"override": {"router": "llm-d-0.6.0"}}}),
    "own-picker-config": Change(
        ("Router",),
        {
            "topology": "agg-tp1-16r",
            "router": {
                "config": {
                    "schedulingProfiles": [
                        {
                            "name": "default",
                            "plugins": [{"pluginRef": "queue-scorer", "weight": 2}, {"pluginRef": "max-score-picker"}],
                        }
                    ],
                    "plugins": [{"type": "queue-scorer"}, {"type": "max-score-picker"}],
                }
            },
        },
        {"topology": "agg-tp1-16r"},
    ),
    "precise-prefix": Change(
        ("PrefillDecodeUnit", "Router"), {"router": {"profile": "precise-prefix", "decider": "always"}}
    ),
    "proxy-image": Change(
        ("StackFrontDoor", "FrontDoor", "Router"),
        {"stack": {**DOOR["stack"], "override": {"proxyImage": "docker.io/envoyproxy/envoy:distroless-v1.40.1"}}},
        DOOR,
    ),
    "registry-mirror": Change(
        ("PrefillDecodeUnit", "Router", "ServingNamespace", "ImagePull"),
        {"stack": {"registryMirror": {"prefix": "iad.ocir.io/ai/mirror", "pullSecret": "ocir"}}},
    ),
    "scaled-aggregated-servers": Change(
        ("ModelScaling",),
        {
            "topology": "agg-tp1-4r",
            "scaling": {"aggregated": {"minReplicas": 2, "maxReplicas": 8, "requests": 40, "kvCacheUsage": 0.8}},
        },
        {"scaling": SCALING},
    ),
    "servers-over-nodes": Change(("PrefillDecodeUnit", "Router", "SmokeBenchmark"), {"topology": WIDE}),
    "session-affinity": Change(("Router",), {"router": {"profile": "session-affinity"}}),
    "small-servers": Change(SERVERS, SMALL),
    "smoke-limits": Change(
        ("SmokeBenchmark",),
        {
            "stack": {
                "smoke": {
                    "requests": 16,
                    "thresholds": {
                        "maxTtftP95Ms": 900,
                        "maxItlP95Ms": 30,
                        "maxE2EP95Ms": 9000,
                        "minAccuracy": 0.9,
                        "minOutputTokensPerS": 100,
                    },
                }
            }
        },
    ),
    "speculation": Change(
        ("PrefillDecodeUnit", "ModelCache"),
        {"model": "deepseek-r1", "topology": "1p-tp8-1d-tp8", "engine": {"speculation": {"tokens": 1}}, **NODE_DISK},
        {"model": "deepseek-r1", "topology": "1p-tp8-1d-tp8", **NODE_DISK},
    ),
    "tracing": Change(
        ("PrefillDecodeUnit", "Router"),
        {"stack": {"tracing": {"endpoint": "http://otel-collector:4317", "sampledShare": 0.25}}},
    ),
    "two-models": Change(
        ("StackFrontDoor", "ModelEndpoint", "ServingNamespace"),
        {
            "stack": {
                "frontDoor": {"uncheckedPods": "accepted", "hosts": {"agg.example.com": "gpt-agg"}},
                "models": [model(), model("agg-tp1-4r", name="gpt-agg", engine={"maxModelLen": 8192})],
            }
        },
        DOOR,
    ),
    "weights-from-object-storage": Change(
        ("ModelCache",),
        {"stack": {"storage": {**NODE_DISK["stack"]["storage"], "prewarm": {"source": "object-storage"}}}},
        NODE_DISK,
        {"modelSourceUrl": "https://objectstorage/p/link/n/tenancy/b/models/o/"},
    ),
    "wide-expert-parallelism": Change(
        SERVERS,
        {
            "model": "deepseek-v3",
            "name": "gpt-oss-120b",
            "topology": WIDE,
            "disaggregatedSet": True,
            "engine": {
                "gpuMemoryUtilization": 0.8,
                "kvCache": {"connector": "mori-io"},
                "prefill": {"all2AllBackend": "mori_high_throughput"},
                "decode": {"all2AllBackend": "mori_low_latency"},
            },
            "stack": {
                **LATEST,
                "cluster": existing_cluster(virtualFunctions="amd-vnic"),
                "gpuPools": [existing_pool(shape="BM.GPU.MI355X.8", size=4)],
                "override": {
                    "vllmImage": "registry.example/vllm:wide-ep",
                    "routingSidecarImage": "registry.example/sidecar:wide-ep",
                },
            },
        },
        {"topology": WIDE, "disaggregatedSet": True, "stack": LATEST},
    ),
}

_JOINED = {
    "cluster_id": ocid("cluster"),
    "compartment_id": ocid("compartment"),
    "api_server_host": "10.140.0.5",
    "ca_certificate": "Q0E=",
    "tenancy_id": ocid("tenancy"),
}
_WORKERS = {
    "worker_subnet_id": ocid("subnet", "workers"),
    "worker_nsg_ids": [ocid("networksecuritygroup", "workers")],
    "pod_subnet_id": ocid("subnet", "pods"),
    "pod_nsg_ids": [ocid("networksecuritygroup", "pods")],
}
_POOL = {"cluster": _JOINED, "kubernetes_version": "v1.34.2", "network": _WORKERS, "size": 2}
_VIRTUAL_MACHINES = {**_POOL, "shape": "VM.Standard.E5.Flex", "availability_domains": [DOMAIN]}
_NAMED = {"namespace": "llm-d", "model": "gpt-oss-120b"}
_SERVED = {**_NAMED, "release": "llm-d-0.9.0", "shape": "BM.GPU.MI300X.8", "service_account": "servers"}
_SERVERS = {"replicas": 2, "tensor_parallel_size": 1}
_COMPARTMENT = {"compartment_id": ocid("compartment")}

LEAST_ARGUMENTS: dict[str, dict[str, Any]] = {
    "AggregatedUnit": {**_SERVED, "servers": _SERVERS},
    "AggregatedUnit with a cache": {
        **_SERVED,
        "servers": _SERVERS,
        "model_cache": {"path": "/mnt/nvme/models"},
    },
    "Budget": {
        **_COMPARTMENT,
        "tenancy_id": ocid("tenancy"),
        "monthly_amount": 1000,
        "recipients": ["ops@example.com"],
        "alerts": [{"percent": 50, "of": "spent"}],
    },
    "CpuPool": _VIRTUAL_MACHINES,
    "FrontDoor": {**_NAMED, "release": "llm-d-0.9.0", "routers": ["gpt-oss-120b"]},
    "Gateway": {
        "namespace": "llm-d",
        "provider": "istio",
        "gateway": "inference-gateway",
        "listeners": [{"name": "http", "port": 80}],
    },
    "GpuPool": {
        **_POOL,
        "shape": "BM.GPU.MI300X.8",
        "availability_domain": DOMAIN,
        "image_id": ocid("image"),
    },
    "Iam": {
        **_COMPARTMENT,
        "tenancy_id": ocid("tenancy"),
        "needs": ["ocir", "file-storage", "lustre"],
        "cluster_id": ocid("cluster"),
    },
    "ModelCache": {
        "kind": "node-disk",
        "models": ["gpt-oss-120b"],
        "namespace": "llm-d",
        "nodes": 2,
        "service_account": "prewarm",
        "shape": "BM.GPU.MI300X.8",
    },
    "ModelEndpoint": _NAMED,
    "ModelMonitoring": {"namespace": "llm-d"},
    "ModelRoute": {
        **_NAMED,
        "units": ["gpt-oss-120b"],
        "provider": "istio",
        "gateway": "inference-gateway",
        "gateway_namespace": "llm-d",
        "service_host": "inference-gateway-istio.llm-d.svc.cluster.local",
    },
    "ModelScaling": {
        "namespace": "llm-d",
        "unit": "gpt-oss-120b",
        "servers": {"decode": {"min_replicas": 1, "max_replicas": 4, "requests": 40}},
    },
    "Network": {**_COMPARTMENT, "pools": [{"nodes": 2, "max_pods": 64}]},
    "NodeImage": {
        **_COMPARTMENT,
        "checksum": IMAGE["checksum"],
        "display_name": IMAGE["name"],
        "uri": IMAGE["uri"],
    },
    "OciMonitoring": {**_COMPARTMENT, "cluster_id": ocid("cluster")},
    "OkeCluster": {
        **_COMPARTMENT,
        "kubernetes_version": "v1.34.2",
        "network": {"vcn_id": ocid("vcn"), "api_subnet_id": ocid("subnet", "api"), "api_nsg_ids": []},
        "region": "us-ashburn-1",
    },
    "PrefillDecodeUnit": {**_SERVED, "prefill": _SERVERS, "decode": _SERVERS},
    "Router": {**_NAMED, "disaggregated": True, "release": "llm-d-0.9.0", "unit": "gpt-oss-120b"},
    "StackFrontDoor": {
        "namespace": "llm-d",
        "release": "llm-d-0.9.0",
        "models": [
            {"name": "gpt-oss-120b", "served_name": "openai/gpt-oss-120b", "units": [{"service": "gpt-oss-120b-epp"}]}
        ],
    },
    "Storage": {
        **_COMPARTMENT,
        "kind": "lustre",
        "availability_domain": DOMAIN,
        "subnet_id": ocid("subnet", "lustre"),
    },
    "Storage with NFS": {
        **_COMPARTMENT,
        "kind": "file-storage",
        "availability_domain": DOMAIN,
        "subnet_id": ocid("subnet", "storage"),
        "client_cidr": "10.140.0.0/16",
    },
    "SystemPool": _VIRTUAL_MACHINES,
}
"""Arguments that components of other programs need, those with arguments to leave out, by component and words that
tell two of one component apart.
"""
