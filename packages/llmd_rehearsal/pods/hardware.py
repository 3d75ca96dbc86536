"""Simulated GPUs and RDMA ports of a pod's node: files of /sys, amd-smi, and modules for PyTorch and NIXL.

Only Python programs in images of vLLM get the simulated hardware, in containers that request all GPUs of a node. Faults
of a node are rules of the rehearsal's fault file (`resource: Node`).
"""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from lightkube.models.core_v1 import Container
from llmd_oke import catalogue
from llmd_oke.catalogue import Shape
from llmd_oke.catalogue.benchmarks import acceptance
from llmd_oke.catalogue.operators import rdma
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.operations.objects import texts

from llmd_rehearsal.agent_config import NodeConfig
from llmd_rehearsal.devices import device_rules
from llmd_rehearsal.oci_plugin.faults import NODE, Fault, Faults
from llmd_rehearsal.pods.containers import Mount

FOLDER = "/opt/simulated-node"
TOOL = "/opt/rocm/bin/amd-smi"
SYSFS = "/sys"
ENVIRONMENT: Mapping[str, str] = {"PYTHONPATH": f"{FOLDER}/site"}

FAULTY_PORT = 2
FAULTY_GPU = 5
USUAL_MEMORY_SHARE, USUAL_MATRIX_SHARE, USUAL_DISK_GB_PER_S = 0.8, 0.5, 12.0
"""Shares of a GPU's peak memory bandwidth and matrix rate, and a disk's rate in GB/s, on a healthy node. AMD's
acceptance requires 4.2 TB/s of an MI300X; the other figures are assumed.
"""

SLOW_SHARE = 0.25
"""Share of its nominal rate at which an RDMA link or a GPU with the fault `slow-link` or `slow-gpu` works."""

USUAL_SHARE = 0.89
"""Share of its line rate that a healthy RDMA link reaches: 356 of 400 GB/s over eight ports, as published (oci-hpc-oke,
manifests/rccl-tests).
"""

_GID = "0000:0000:0000:0000:0000:ffff:c0a8:{:04x}"
_SOCKETS = 2


def takes_node(container: Container, node: NodeConfig) -> bool:
    """Tell whether a container requests all GPUs of its node."""
    shape = shape_of(node)
    return shape is not None and texts(container.resources, "limits").get(shape.gpu.resource) == str(shape.gpus)


def shape_of(node: NodeConfig) -> Shape | None:
    """Return the catalogue's shape of a node; None if the catalogue doesn't have the node's shape."""
    name = node.labels.get(INSTANCE_TYPE_LABEL)
    return catalogue.shape(name) if name else None


def write_pci_functions(sysfs: Path, node: NodeConfig) -> None:
    """Write the PCI functions of a node's GPUs into the node's `/sys`, where operators look for GPUs."""
    shape = shape_of(node)
    if shape is None:
        return
    files = device_rules().gpu_functions.files(shape.gpu.product)
    for address in _gpu_addresses(shape):
        folder = sysfs / "bus" / "pci" / "devices" / address
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n")


def mounts(container: Container, node: NodeConfig, folder: Path, faults: Faults) -> list[Mount]:
    """Write the files of a container's simulated hardware (GPUs, RDMA ports) into `folder` and return their mounts in
    the container.
    """
    shape = shape_of(node)
    if shape is None:
        return []
    rule = faults.take(NODE, [node.name], "use")
    fault = rule.fault if rule else None
    functions = {shape.rdma.resource, *(names.resource for names in rdma().names.values())}
    ports = len(shape.rdma.adapters) if functions & texts(container.resources, "limits").keys() else 0
    write(folder, shape, ports, fault)
    site = Path(str(resources.files("llmd_rehearsal"))) / "simulated_node"
    return [
        Mount(folder / "sys", "/sys"),
        Mount(folder / "node", FOLDER, read_only=True),
        Mount(site, f"{FOLDER}/site", read_only=True),
        Mount(folder / "amd-smi", TOOL, read_only=True),
    ]


def write(folder: Path, shape: Shape, ports: int, fault: Fault | None) -> None:
    """Write the files of a node's simulated hardware: of its shape's GPUs and of `ports` RDMA ports, with this fault
    (None: without a fault).
    """
    addresses = _gpu_addresses(shape)
    files: dict[str, object] = {
        f"sys/bus/pci/devices/{address}/numa_node": _socket(gpu, shape.gpus) for gpu, address in enumerate(addresses)
    }
    figures = acceptance().shapes.get(shape.name)
    mtu = figures.mtu_bytes if figures else 0
    gid_index = shape.rdma.environment.get("UCX_IB_GID_INDEX", "3")
    for port in range(ports - (fault is Fault.MISSING_VIRTUAL_FUNCTION)):
        wrong = fault is Fault.WRONG_GID and port == FAULTY_PORT
        device = f"sys/class/infiniband/mlx5_{port}"
        files |= {
            f"{device}/device/numa_node": _socket(port, ports),
            f"{device}/ports/1/state": "4: ACTIVE",
            f"{device}/ports/1/phys_state": "5: LinkUp",
            f"{device}/ports/1/counters/port_rcv_data": 0,
            f"{device}/ports/1/gids/{gid_index}": _GID.format(port + 1),
            f"{device}/ports/1/gid_attrs/types/{gid_index}": "IB/RoCE v1" if wrong else "RoCE v2",
            f"{device}/ports/1/gid_attrs/ndevs/{gid_index}": f"net{port + 1}",
            f"sys/class/net/net{port + 1}/mtu": mtu,
        }
    line = shape.rdma.port_gbit_per_s / 8
    rates = [line * USUAL_SHARE] * shape.gpus
    if fault is Fault.SLOW_LINK:
        rates[FAULTY_PORT] = line * SLOW_SHARE
    visible = addresses[: shape.gpus - (fault is Fault.DEAD_GPU)]
    memory = [shape.gpu.memory_bandwidth_gb_per_s * USUAL_MEMORY_SHARE] * shape.gpus
    products = [shape.gpu.dense_tflops.bf16 * USUAL_MATRIX_SHARE] * shape.gpus
    if fault is Fault.SLOW_GPU:
        memory[FAULTY_GPU], products[FAULTY_GPU] = memory[FAULTY_GPU] * SLOW_SHARE, products[FAULTY_GPU] * SLOW_SHARE
    disks = shape.disks.count - (fault is Fault.MISSING_DISK) if shape.disks else 0
    for disk in range(disks):
        sectors = int(shape.disks.terabytes * 1e12 / 512) if shape.disks else 0
        files[f"sys/block/nvme{disk}n1/size"] = sectors
    files["node/node.json"] = json.dumps(
        {
            "gpus": visible,
            "port_gb_per_s": rates,
            "memory_gb_per_s": memory,
            "matrix_tflops": products,
            "disk_gb_per_s": USUAL_DISK_GB_PER_S,
        }
    )
    files["amd-smi"] = f'#!/bin/sh\nexec python3 {FOLDER}/site/amd_smi.py "$@"'
    for name, value in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    (folder / "node" / "site").mkdir(exist_ok=True)
    (folder / "amd-smi").chmod(0o755)


def _gpu_addresses(shape: Shape) -> list[str]:
    return [f"0000:{0x11 + 0x10 * gpu:02x}:00.0" for gpu in range(shape.gpus)]


def _socket(number: int, count: int) -> int:
    return number * _SOCKETS // count
