import pytest
from llmd_bench.readers.source import gpu_product
from results_rows import NAMES


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("AMD-Instinct-MI300X", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA-B200", "B200"),
    ],
)
def test_gpus_are_named_by_product_without_the_vendor(name: str, product: str):
    """Boards of a product with other limits keep their names."""
    assert gpu_product(name, NAMES.gpus) == product
