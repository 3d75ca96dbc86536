"""The stack file: its shape and its types. What it means is judged by `planning`."""

from llmd_oke.config.base import Part
from llmd_oke.config.cluster import Cluster, ExistingCluster
from llmd_oke.config.create_cluster import AddOn, CreateCluster, Oidc
from llmd_oke.config.document import CONFIG_KEY, locate
from llmd_oke.config.gpu_pool import GpuPool, Launch
from llmd_oke.config.iam import Iam
from llmd_oke.config.load import (
    load,
    parse,
    project_name,
    read,
    require_project,
    settings,
    stack_file,
    stacks,
    validate,
)
from llmd_oke.config.model import Engine, Model, Router, Slo, Workload
from llmd_oke.config.network import Network
from llmd_oke.config.node_pools import CpuPool, Image, SystemPool
from llmd_oke.config.node_scaling import AutoscaledSize, SizeLimits
from llmd_oke.config.scaling import Scaling, ServersScaling
from llmd_oke.config.smoke import Smoke, SmokeThresholds
from llmd_oke.config.stack import Layer, StackConfig
from llmd_oke.config.storage import FileStorage, Lustre, ModelCache, NodeDisk, NoModelCache, Prewarm, Storage
from llmd_oke.config.topology import Role, Servers, Topology

__all__ = [
    "CONFIG_KEY",
    "AddOn",
    "AutoscaledSize",
    "Cluster",
    "CpuPool",
    "CreateCluster",
    "Engine",
    "ExistingCluster",
    "FileStorage",
    "GpuPool",
    "Iam",
    "Image",
    "Launch",
    "Layer",
    "Lustre",
    "Model",
    "ModelCache",
    "Network",
    "NoModelCache",
    "NodeDisk",
    "Oidc",
    "Part",
    "Prewarm",
    "Role",
    "Router",
    "Scaling",
    "Servers",
    "ServersScaling",
    "SizeLimits",
    "Slo",
    "Smoke",
    "SmokeThresholds",
    "StackConfig",
    "Storage",
    "SystemPool",
    "Topology",
    "Workload",
    "load",
    "locate",
    "parse",
    "project_name",
    "read",
    "require_project",
    "settings",
    "stack_file",
    "stacks",
    "validate",
]
