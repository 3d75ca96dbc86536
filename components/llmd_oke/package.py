"""The components as a Pulumi component package, for programs in other languages and for `pulumi package add`.

This is the only module that touches `pulumi.provider.experimental`: what Pulumi calls experimental may move.
"""

import json
import re
import sys
from importlib import metadata
from typing import Any

import pulumi
from pulumi.provider import main
from pulumi.provider.experimental.component import ComponentProvider

from llmd_oke.cluster.add_ons import AddOns
from llmd_oke.cluster.cpu_pool import CpuNodesArgs, CpuPool
from llmd_oke.cluster.gate import NodeGate
from llmd_oke.cluster.gpu_pool import GpuPool
from llmd_oke.cluster.iam import Iam
from llmd_oke.cluster.network import Network
from llmd_oke.cluster.node_image import NodeImage
from llmd_oke.cluster.oke_cluster import OkeCluster
from llmd_oke.cluster.storage import Storage
from llmd_oke.cluster.system_pool import SystemPool
from llmd_oke.operators.amd_gpu_operator import AmdGpuOperator
from llmd_oke.operators.cert_manager import CertManager
from llmd_oke.operators.crds import Crds
from llmd_oke.operators.node_feature_discovery import NodeFeatureDiscovery
from llmd_oke.operators.rdma_network import RdmaNetwork
from llmd_oke.serving.aggregated import AggregatedUnit
from llmd_oke.serving.args import UnitArgs
from llmd_oke.serving.autoscaling import ModelScaling
from llmd_oke.serving.endpoint import ModelEndpoint
from llmd_oke.serving.front_door import FrontDoor
from llmd_oke.serving.image_pull import ImagePull
from llmd_oke.serving.model_cache import ModelCache
from llmd_oke.serving.namespace import ServingNamespace
from llmd_oke.serving.prefill_decode import PrefillDecodeUnit
from llmd_oke.serving.router import Router
from llmd_oke.serving.smoke_benchmark import SmokeBenchmark

NAME = "llmd-oke"

COMPONENTS: list[type[pulumi.ComponentResource]] = [
    AddOns,
    AggregatedUnit,
    AmdGpuOperator,
    CertManager,
    CpuPool,
    Crds,
    FrontDoor,
    GpuPool,
    Iam,
    ModelCache,
    ModelEndpoint,
    ModelScaling,
    Network,
    NodeFeatureDiscovery,
    NodeGate,
    ImagePull,
    NodeImage,
    OkeCluster,
    PrefillDecodeUnit,
    RdmaNetwork,
    Router,
    ServingNamespace,
    SmokeBenchmark,
    Storage,
    SystemPool,
]
"""All components, listed one by one: left to itself Pulumi would host every component class that it finds imported."""


def serve() -> None:
    """Hosts the components for the Pulumi engine until it ends the process."""
    main(provider(), sys.argv[1:])


def provider() -> ComponentProvider:
    """The package's provider, with a schema that describes inherited arguments too; Pulumi leaves those blank."""
    made = ComponentProvider(COMPONENTS, NAME, None, metadata.version(NAME))
    described = json.loads(made.schema or "{}")
    for token, component in described["resources"].items():
        base = CpuNodesArgs if token.endswith("Pool") else UnitArgs
        for name, argument in component["inputProperties"].items():
            if "description" not in argument:
                argument["description"] = made.analyzer.get_docstring(base, _snake_case(name)) or ""
    made.schema = json.dumps(described)
    return made


def schema() -> dict[str, Any]:
    """The package's schema, as the engine gets it: what other languages see of the components."""
    return json.loads(provider().schema or "{}")


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)
