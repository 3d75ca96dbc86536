"""The stack file: its shape and its types. What it means is judged by `planning`."""

from llmd_oke.config.base import Part
from llmd_oke.config.cluster import Cluster, ExistingCluster
from llmd_oke.config.document import CONFIG_KEY, locate
from llmd_oke.config.gpu_pool import GpuPool
from llmd_oke.config.load import load, parse, read, stack_file, stacks, validate
from llmd_oke.config.model import Engine, Model, Router, Slo, Workload
from llmd_oke.config.smoke import Smoke, SmokeThresholds
from llmd_oke.config.stack import StackConfig
from llmd_oke.config.topology import Role, Servers, Topology

__all__ = [
    "CONFIG_KEY",
    "Cluster",
    "Engine",
    "ExistingCluster",
    "GpuPool",
    "Model",
    "Part",
    "Role",
    "Router",
    "Servers",
    "Slo",
    "Smoke",
    "SmokeThresholds",
    "StackConfig",
    "Topology",
    "Workload",
    "load",
    "locate",
    "parse",
    "read",
    "stack_file",
    "stacks",
    "validate",
]
