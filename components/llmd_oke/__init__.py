"""Prefill/decode disaggregated vLLM with llm-d on OKE and MI300X.

What other projects import: the components and their arguments. They are loaded when they are first used, because
Pulumi's packages take a second and much of the kit (planning, benchmarks, tuning) does without them.

    from llmd_oke import PrefillDecodeUnit, Router

For tests of your own programs there is `llmd_oke.testing`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmd_oke.cluster.add_ons import AddOnArgs, AddOns, AddOnsArgs
    from llmd_oke.cluster.cpu_pool import CpuPool, CpuPoolArgs
    from llmd_oke.cluster.gate import NodeGate, NodeGateArgs
    from llmd_oke.cluster.gpu_pool import GpuPool, GpuPoolArgs, Launch
    from llmd_oke.cluster.iam import Iam, IamArgs
    from llmd_oke.cluster.network import Network, NetworkArgs
    from llmd_oke.cluster.node_image import NodeImage, NodeImageArgs
    from llmd_oke.cluster.oke_cluster import OidcArgs, OkeCluster, OkeClusterArgs
    from llmd_oke.cluster.pool_parts import CyclingArgs, NodeNetworkArgs, TaintArgs
    from llmd_oke.cluster.storage import Storage, StorageArgs
    from llmd_oke.cluster.system_pool import SystemPool, SystemPoolArgs
    from llmd_oke.errors import KitError, Problem, Refused
    from llmd_oke.operators.amd_gpu_operator import AmdGpuOperator, AmdGpuOperatorArgs
    from llmd_oke.operators.args import TolerationArgs
    from llmd_oke.operators.cert_manager import CertManager, CertManagerArgs
    from llmd_oke.operators.crds import Crds, CrdsArgs
    from llmd_oke.operators.node_feature_discovery import NodeFeatureDiscovery, NodeFeatureDiscoveryArgs
    from llmd_oke.operators.rdma_network import RdmaNetwork, RdmaNetworkArgs
    from llmd_oke.serving.aggregated import AggregatedUnit, AggregatedUnitArgs
    from llmd_oke.serving.args import EngineArgs, ServersArgs, UnitArgs
    from llmd_oke.serving.autoscaling import ModelScaling, ModelScalingArgs, ScaledServersArgs
    from llmd_oke.serving.cache_args import ModelCacheMountArgs, PrewarmArgs
    from llmd_oke.serving.endpoint import ModelEndpoint, ModelEndpointArgs
    from llmd_oke.serving.front_door import FrontDoor, FrontDoorArgs
    from llmd_oke.serving.image_pull import ImagePull, ImagePullArgs
    from llmd_oke.serving.model_cache import ModelCache, ModelCacheArgs
    from llmd_oke.serving.namespace import ServingNamespace, ServingNamespaceArgs
    from llmd_oke.serving.prefill_decode import PrefillDecodeUnit, PrefillDecodeUnitArgs
    from llmd_oke.serving.router import Router, RouterArgs
    from llmd_oke.serving.smoke_benchmark import SmokeBenchmark, SmokeBenchmarkArgs

_MODULES = {
    "llmd_oke.cluster.system_pool": ("SystemPool", "SystemPoolArgs"),
    "llmd_oke.cluster.pool_parts": ("CyclingArgs", "NodeNetworkArgs", "TaintArgs"),
    "llmd_oke.cluster.oke_cluster": ("OidcArgs", "OkeCluster", "OkeClusterArgs"),
    "llmd_oke.cluster.node_image": ("NodeImage", "NodeImageArgs"),
    "llmd_oke.cluster.gpu_pool": ("GpuPool", "GpuPoolArgs", "Launch"),
    "llmd_oke.cluster.gate": ("NodeGate", "NodeGateArgs"),
    "llmd_oke.cluster.cpu_pool": ("CpuPool", "CpuPoolArgs"),
    "llmd_oke.cluster.add_ons": ("AddOnArgs", "AddOns", "AddOnsArgs"),
    "llmd_oke.cluster.iam": ("Iam", "IamArgs"),
    "llmd_oke.cluster.network": ("Network", "NetworkArgs"),
    "llmd_oke.cluster.storage": ("Storage", "StorageArgs"),
    "llmd_oke.errors": ("KitError", "Problem", "Refused"),
    "llmd_oke.operators.amd_gpu_operator": ("AmdGpuOperator", "AmdGpuOperatorArgs"),
    "llmd_oke.operators.args": ("TolerationArgs",),
    "llmd_oke.operators.cert_manager": ("CertManager", "CertManagerArgs"),
    "llmd_oke.operators.crds": ("Crds", "CrdsArgs"),
    "llmd_oke.operators.node_feature_discovery": ("NodeFeatureDiscovery", "NodeFeatureDiscoveryArgs"),
    "llmd_oke.operators.rdma_network": ("RdmaNetwork", "RdmaNetworkArgs"),
    "llmd_oke.serving.aggregated": ("AggregatedUnit", "AggregatedUnitArgs"),
    "llmd_oke.serving.args": ("EngineArgs", "ServersArgs", "UnitArgs"),
    "llmd_oke.serving.autoscaling": ("ModelScaling", "ModelScalingArgs", "ScaledServersArgs"),
    "llmd_oke.serving.endpoint": ("ModelEndpoint", "ModelEndpointArgs"),
    "llmd_oke.serving.front_door": ("FrontDoor", "FrontDoorArgs"),
    "llmd_oke.serving.image_pull": ("ImagePull", "ImagePullArgs"),
    "llmd_oke.serving.cache_args": ("ModelCacheMountArgs", "PrewarmArgs"),
    "llmd_oke.serving.model_cache": ("ModelCache", "ModelCacheArgs"),
    "llmd_oke.serving.namespace": ("ServingNamespace", "ServingNamespaceArgs"),
    "llmd_oke.serving.prefill_decode": ("PrefillDecodeUnit", "PrefillDecodeUnitArgs"),
    "llmd_oke.serving.router": ("Router", "RouterArgs"),
    "llmd_oke.serving.smoke_benchmark": ("SmokeBenchmark", "SmokeBenchmarkArgs"),
}

__all__ = [
    "AddOnArgs",
    "AddOns",
    "AddOnsArgs",
    "AggregatedUnit",
    "AggregatedUnitArgs",
    "AmdGpuOperator",
    "AmdGpuOperatorArgs",
    "CertManager",
    "CertManagerArgs",
    "CpuPool",
    "CpuPoolArgs",
    "Crds",
    "CrdsArgs",
    "CyclingArgs",
    "EngineArgs",
    "FrontDoor",
    "FrontDoorArgs",
    "GpuPool",
    "GpuPoolArgs",
    "Iam",
    "IamArgs",
    "ImagePull",
    "ImagePullArgs",
    "KitError",
    "Launch",
    "ModelCache",
    "ModelCacheArgs",
    "ModelCacheMountArgs",
    "ModelEndpoint",
    "ModelEndpointArgs",
    "ModelScaling",
    "ModelScalingArgs",
    "Network",
    "NetworkArgs",
    "NodeFeatureDiscovery",
    "NodeFeatureDiscoveryArgs",
    "NodeGate",
    "NodeGateArgs",
    "NodeImage",
    "NodeImageArgs",
    "NodeNetworkArgs",
    "OidcArgs",
    "OkeCluster",
    "OkeClusterArgs",
    "PrefillDecodeUnit",
    "PrefillDecodeUnitArgs",
    "PrewarmArgs",
    "Problem",
    "RdmaNetwork",
    "RdmaNetworkArgs",
    "Refused",
    "Router",
    "RouterArgs",
    "ScaledServersArgs",
    "ServersArgs",
    "ServingNamespace",
    "ServingNamespaceArgs",
    "SmokeBenchmark",
    "SmokeBenchmarkArgs",
    "Storage",
    "StorageArgs",
    "SystemPool",
    "SystemPoolArgs",
    "TaintArgs",
    "TolerationArgs",
    "UnitArgs",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
