"""Whether OCI has nodes as large as a pool of a flexible shape asks for."""

from collections.abc import Iterator
from math import isfinite

from llmd_oke.catalogue.flexible_shapes import flexible_shape
from llmd_oke.config import SystemPool
from llmd_oke.errors import Problem


def size_problems(pool: SystemPool, path: str) -> Iterator[Problem]:
    """OCPUs and memory that no node of the pool's shape can have."""
    limits = flexible_shape(pool.shape)
    if limits is None:
        return
    if pool.ocpus > limits.ocpus:
        why = f"nodes of {pool.shape} have at most {limits.ocpus:g} OCPUs"
        yield Problem(f"{path}.ocpus", pool.ocpus, f"at most {limits.ocpus:g}, or another shape", why)
        return
    least, most = limits.memory_gb_with(pool.ocpus)
    if not least <= pool.memory_gib <= most:
        low, high = limits.memory_gb_per_ocpu
        whole = f" and at most {limits.memory_gb:g} GB" if isfinite(limits.memory_gb) else ""
        each = f"nodes of {pool.shape} have {low:g} to {high:g} GB for each OCPU{whole}"
        why = f"{each}, so {least:g} to {most:g} with {pool.ocpus:g} OCPUs"
        yield Problem(f"{path}.memoryGib", pool.memory_gib, f"{least:g} to {most:g}, or other ocpus", why)
