"""GPU products: the limits that nothing on them exceeds, and the nodes of those without a shape in the catalogue."""

from functools import cache

from llmd_oke.catalogue.files import Entry, entry, names


class Link(Entry):
    """How the GPUs of a node are joined: GB/s in one direction, to each other GPU, or to all together if `switched`."""

    gb_per_s: float
    switched: bool


class DenseTflops(Entry):
    """Peak rates of matrix units by number format, without sparsity; None for a format that they don't have."""

    bf16: float
    fp8: float | None = None
    mxfp4: float | None = None

    def of(self, number_format: str) -> float:
        """The rate for weights in that format; that of BF16 where matrix units lack it, so that it is only stored."""
        return getattr(self, number_format, None) or self.bf16


class OtherNode(Entry):
    """The nodes of a GPU without a shape in the catalogue; no price where OCI's public list has none."""

    gpus: int
    port_gbit_per_s: float
    price_usd_per_gpu_hour: float | None = None


class Gpu(Entry):
    """One GPU. Memory in GiB, bandwidth in GB/s; `resource` is how pods ask for it."""

    product: str
    vendor: str
    resource: str
    architecture: str
    memory_gib: float
    memory_bandwidth_gb_per_s: float
    dense_tflops: DenseTflops
    link: Link
    node: OtherNode | None = None


@cache
def gpu(product: str) -> Gpu | None:
    """The GPU of that product, or None."""
    return entry("gpus", product, Gpu)


def gpu_names() -> list[str]:
    """All GPU products of the catalogue."""
    return names("gpus")
