"""Prefill/decode disaggregated vLLM with llm-d on OKE and MI300X.

What other projects import: the components and their arguments. They are loaded when they are first used, because
Pulumi's packages take a second and much of the kit (planning, benchmarks, tuning) does without them.

    from llmd_oke import PrefillDecodeUnit, Router

For tests of your own programs there is `llmd_oke.testing`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llmd_oke.version import __version__ as __version__

if TYPE_CHECKING:
    from llmd_base.errors import InvalidStack, KitError, Problem

    from llmd_oke.cluster.budget import Budget, BudgetAlertArgs, BudgetArgs
    from llmd_oke.cluster.gate import NodeGate, NodeGateArgs
    from llmd_oke.cluster.gpu_pool import GpuPool, GpuPoolArgs, Launch
    from llmd_oke.cluster.iam import Iam, IamArgs
    from llmd_oke.cluster.network import ClusterNetworkArgs, Network, NetworkArgs, NodeNetworkArgs
    from llmd_oke.cluster.oci_monitoring import OciAlarmArgs, OciMonitoring, OciMonitoringArgs
    from llmd_oke.cluster.oke_cluster import (
        AddOnArgs,
        AddOns,
        AddOnsArgs,
        NodeClusterArgs,
        OidcArgs,
        OkeCluster,
        OkeClusterArgs,
    )
    from llmd_oke.cluster.pools import (
        CpuPool,
        CpuPoolArgs,
        CyclingArgs,
        NodeImage,
        NodeImageArgs,
        SystemPool,
        SystemPoolArgs,
        TaintArgs,
    )
    from llmd_oke.cluster.storage import Storage, StorageArgs
    from llmd_oke.operators.calico import Calico, CalicoArgs
    from llmd_oke.operators.crds import Crds, CrdsArgs
    from llmd_oke.operators.helm_operators import (
        AmdGpuOperator,
        AmdGpuOperatorArgs,
        CertManager,
        CertManagerArgs,
        LeaderWorkerSetController,
        LeaderWorkerSetControllerArgs,
        NodeFeatureDiscovery,
        NodeFeatureDiscoveryArgs,
        PrometheusStack,
        PrometheusStackArgs,
        TolerationArgs,
    )
    from llmd_oke.operators.node_repair import NodeRepair, NodeRepairArgs, RepairedPoolArgs
    from llmd_oke.operators.rdma_network import RdmaNetwork, RdmaNetworkArgs
    from llmd_oke.serving.acceptance import Acceptance, AcceptanceArgs, AcceptedPoolArgs, NodeLimitsArgs
    from llmd_oke.serving.adapters import AdapterNames, AdapterNamesArgs
    from llmd_oke.serving.args import (
        DestinationArgs,
        EngineArgs,
        EngineUserArgs,
        GatewayPodsArgs,
        ModelCacheMountArgs,
        PrewarmArgs,
        ServersArgs,
        TracingArgs,
        UnitArgs,
    )
    from llmd_oke.serving.canary import Canary, CanaryArgs
    from llmd_oke.serving.front_door import (
        FrontDoor,
        FrontDoorArgs,
        FrontDoorPortArgs,
        ModelEndpoint,
        ModelEndpointArgs,
    )
    from llmd_oke.serving.gateway import Gateway, GatewayArgs, GatewayListenerArgs, ModelRoute, ModelRouteArgs
    from llmd_oke.serving.image_pull import ImagePull, ImagePullArgs
    from llmd_oke.serving.model_cache import (
        AdaptedModelArgs,
        AdapterArgs,
        ModelCache,
        ModelCacheArgs,
        ModelDraftArgs,
    )
    from llmd_oke.serving.monitoring import ModelMonitoring, ModelMonitoringArgs
    from llmd_oke.serving.namespace import ServingNamespace, ServingNamespaceArgs
    from llmd_oke.serving.picker_config import RouterArgs
    from llmd_oke.serving.router import Router
    from llmd_oke.serving.smoke_benchmark import SmokeBenchmark, SmokeBenchmarkArgs
    from llmd_oke.serving.stack_front_door import (
        FrontDoorCertificateArgs,
        FrontDoorIssuerArgs,
        FrontDoorLoadBalancerArgs,
        FrontDoorModelArgs,
        FrontDoorTokensArgs,
        FrontDoorUnitArgs,
        StackFrontDoor,
        StackFrontDoorArgs,
    )
    from llmd_oke.serving.units import (
        AggregatedUnit,
        AggregatedUnitArgs,
        ModelScaling,
        ModelScalingArgs,
        PrefillDecodeUnit,
        PrefillDecodeUnitArgs,
        ScaledServersArgs,
    )

REGISTRY = {
    "llmd_oke.cluster.budget": (
        "Budget",
        "BudgetAlertArgs",
        "BudgetArgs",
    ),
    "llmd_oke.cluster.gate": (
        "NodeGate",
        "NodeGateArgs",
    ),
    "llmd_oke.cluster.gpu_pool": (
        "GpuPool",
        "GpuPoolArgs",
        "Launch",
    ),
    "llmd_oke.cluster.iam": (
        "Iam",
        "IamArgs",
    ),
    "llmd_oke.cluster.network": (
        "ClusterNetworkArgs",
        "Network",
        "NetworkArgs",
        "NodeNetworkArgs",
    ),
    "llmd_oke.cluster.oci_monitoring": (
        "OciAlarmArgs",
        "OciMonitoring",
        "OciMonitoringArgs",
    ),
    "llmd_oke.cluster.oke_cluster": (
        "AddOnArgs",
        "AddOns",
        "AddOnsArgs",
        "NodeClusterArgs",
        "OidcArgs",
        "OkeCluster",
        "OkeClusterArgs",
    ),
    "llmd_oke.cluster.pools": (
        "CpuPool",
        "CpuPoolArgs",
        "CyclingArgs",
        "NodeImage",
        "NodeImageArgs",
        "SystemPool",
        "SystemPoolArgs",
        "TaintArgs",
    ),
    "llmd_oke.cluster.storage": (
        "Storage",
        "StorageArgs",
    ),
    "llmd_base.errors": (
        "KitError",
        "Problem",
        "InvalidStack",
    ),
    "llmd_oke.operators.calico": (
        "Calico",
        "CalicoArgs",
    ),
    "llmd_oke.operators.crds": (
        "Crds",
        "CrdsArgs",
    ),
    "llmd_oke.operators.helm_operators": (
        "AmdGpuOperator",
        "AmdGpuOperatorArgs",
        "CertManager",
        "CertManagerArgs",
        "LeaderWorkerSetController",
        "LeaderWorkerSetControllerArgs",
        "NodeFeatureDiscovery",
        "NodeFeatureDiscoveryArgs",
        "PrometheusStack",
        "PrometheusStackArgs",
        "TolerationArgs",
    ),
    "llmd_oke.operators.node_repair": (
        "NodeRepair",
        "NodeRepairArgs",
        "RepairedPoolArgs",
    ),
    "llmd_oke.operators.rdma_network": (
        "RdmaNetwork",
        "RdmaNetworkArgs",
    ),
    "llmd_oke.serving.adapters": (
        "AdapterNames",
        "AdapterNamesArgs",
    ),
    "llmd_oke.serving.args": (
        "DestinationArgs",
        "EngineArgs",
        "EngineUserArgs",
        "GatewayPodsArgs",
        "ModelCacheMountArgs",
        "PrewarmArgs",
        "ServersArgs",
        "TracingArgs",
        "UnitArgs",
    ),
    "llmd_oke.serving.acceptance": (
        "Acceptance",
        "AcceptanceArgs",
        "AcceptedPoolArgs",
        "NodeLimitsArgs",
    ),
    "llmd_oke.serving.canary": (
        "Canary",
        "CanaryArgs",
    ),
    "llmd_oke.serving.front_door": (
        "FrontDoor",
        "FrontDoorArgs",
        "FrontDoorPortArgs",
        "ModelEndpoint",
        "ModelEndpointArgs",
    ),
    "llmd_oke.serving.gateway": (
        "Gateway",
        "GatewayArgs",
        "GatewayListenerArgs",
        "ModelRoute",
        "ModelRouteArgs",
    ),
    "llmd_oke.serving.image_pull": (
        "ImagePull",
        "ImagePullArgs",
    ),
    "llmd_oke.serving.model_cache": (
        "AdaptedModelArgs",
        "AdapterArgs",
        "ModelCache",
        "ModelCacheArgs",
        "ModelDraftArgs",
    ),
    "llmd_oke.serving.monitoring": (
        "ModelMonitoring",
        "ModelMonitoringArgs",
    ),
    "llmd_oke.serving.namespace": (
        "ServingNamespace",
        "ServingNamespaceArgs",
    ),
    "llmd_oke.serving.picker_config": ("RouterArgs",),
    "llmd_oke.serving.router": ("Router",),
    "llmd_oke.serving.smoke_benchmark": (
        "SmokeBenchmark",
        "SmokeBenchmarkArgs",
    ),
    "llmd_oke.serving.stack_front_door": (
        "FrontDoorCertificateArgs",
        "FrontDoorIssuerArgs",
        "FrontDoorLoadBalancerArgs",
        "FrontDoorModelArgs",
        "FrontDoorTokensArgs",
        "FrontDoorUnitArgs",
        "StackFrontDoor",
        "StackFrontDoorArgs",
    ),
    "llmd_oke.serving.units": (
        "ModelScaling",
        "ModelScalingArgs",
        "ScaledServersArgs",
        "AggregatedUnit",
        "AggregatedUnitArgs",
        "PrefillDecodeUnit",
        "PrefillDecodeUnitArgs",
    ),
}
"""Where the public names are. Each component class among them is in the component package too (`llmd_oke.package`)."""

__all__ = [
    "Acceptance",
    "AcceptanceArgs",
    "AcceptedPoolArgs",
    "AdaptedModelArgs",
    "AdapterArgs",
    "AdapterNames",
    "AdapterNamesArgs",
    "AddOnArgs",
    "AddOns",
    "AddOnsArgs",
    "AggregatedUnit",
    "AggregatedUnitArgs",
    "AmdGpuOperator",
    "AmdGpuOperatorArgs",
    "Budget",
    "BudgetAlertArgs",
    "BudgetArgs",
    "Calico",
    "CalicoArgs",
    "Canary",
    "CanaryArgs",
    "CertManager",
    "CertManagerArgs",
    "ClusterNetworkArgs",
    "CpuPool",
    "CpuPoolArgs",
    "Crds",
    "CrdsArgs",
    "CyclingArgs",
    "DestinationArgs",
    "EngineArgs",
    "EngineUserArgs",
    "FrontDoor",
    "FrontDoorArgs",
    "FrontDoorCertificateArgs",
    "FrontDoorIssuerArgs",
    "FrontDoorLoadBalancerArgs",
    "FrontDoorModelArgs",
    "FrontDoorPortArgs",
    "FrontDoorTokensArgs",
    "FrontDoorUnitArgs",
    "Gateway",
    "GatewayArgs",
    "GatewayListenerArgs",
    "GatewayPodsArgs",
    "GpuPool",
    "GpuPoolArgs",
    "Iam",
    "IamArgs",
    "ImagePull",
    "ImagePullArgs",
    "InvalidStack",
    "KitError",
    "Launch",
    "LeaderWorkerSetController",
    "LeaderWorkerSetControllerArgs",
    "ModelCache",
    "ModelCacheArgs",
    "ModelCacheMountArgs",
    "ModelDraftArgs",
    "ModelEndpoint",
    "ModelEndpointArgs",
    "ModelMonitoring",
    "ModelMonitoringArgs",
    "ModelRoute",
    "ModelRouteArgs",
    "ModelScaling",
    "ModelScalingArgs",
    "Network",
    "NetworkArgs",
    "NodeClusterArgs",
    "NodeFeatureDiscovery",
    "NodeFeatureDiscoveryArgs",
    "NodeGate",
    "NodeGateArgs",
    "NodeImage",
    "NodeImageArgs",
    "NodeLimitsArgs",
    "NodeNetworkArgs",
    "NodeRepair",
    "NodeRepairArgs",
    "OciAlarmArgs",
    "OciMonitoring",
    "OciMonitoringArgs",
    "OidcArgs",
    "OkeCluster",
    "OkeClusterArgs",
    "PrefillDecodeUnit",
    "PrefillDecodeUnitArgs",
    "PrewarmArgs",
    "Problem",
    "PrometheusStack",
    "PrometheusStackArgs",
    "RdmaNetwork",
    "RdmaNetworkArgs",
    "RepairedPoolArgs",
    "Router",
    "RouterArgs",
    "ScaledServersArgs",
    "ServersArgs",
    "ServingNamespace",
    "ServingNamespaceArgs",
    "SmokeBenchmark",
    "SmokeBenchmarkArgs",
    "StackFrontDoor",
    "StackFrontDoorArgs",
    "Storage",
    "StorageArgs",
    "SystemPool",
    "SystemPoolArgs",
    "TaintArgs",
    "TolerationArgs",
    "TracingArgs",
    "UnitArgs",
]


def __getattr__(name: str) -> Any:
    for module, names in REGISTRY.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
