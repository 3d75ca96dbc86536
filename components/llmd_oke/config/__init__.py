"""The stack file: its shape and its types. What it means is judged by `planning`."""

from llmd_oke.config.base import Part
from llmd_oke.config.cluster import AddOn, Cluster, CreateCluster, ExistingCluster, Iam, Network, Oidc
from llmd_oke.config.engine import Engine
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
from llmd_oke.config.model import Model, Router, Scaling, ServersScaling, Slo, Workload
from llmd_oke.config.pools import AutoscaledSize, CpuPool, GpuPool, Image, Launch, SizeLimits, SystemPool
from llmd_oke.config.stack import (
    FileStorage,
    Layer,
    Lustre,
    ModelCache,
    NodeDisk,
    NoModelCache,
    Prewarm,
    Smoke,
    SmokeThresholds,
    StackConfig,
    Storage,
)
from llmd_oke.config.topology import Role, Servers, Topology
from llmd_oke.config.yaml_files import CONFIG_KEY, locate

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
