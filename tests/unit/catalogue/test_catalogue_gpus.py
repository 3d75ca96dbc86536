"""GPUs as data: each figure once, and nodes for every product."""

import pytest
from llmd_oke import catalogue

GPUS = [found for name in catalogue.gpu_names() if (found := catalogue.gpu(name)) is not None]

by_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.product)


def test_the_gpus_that_results_come_from_are_there():
    assert {"MI300X", "MI325X", "MI355X", "H100", "H200"} <= set(catalogue.gpu_names())


@by_gpu
def test_every_gpu_has_the_name_of_its_file(gpu: catalogue.Gpu):
    assert catalogue.gpu(gpu.product) == gpu


@by_gpu
def test_every_gpu_comes_in_nodes(gpu: catalogue.Gpu):
    node = catalogue.node_of_gpu(gpu.product)
    assert node is not None
    assert (node.gpu, node.gpus) == (gpu, 8)


@by_gpu
def test_nodes_of_a_gpu_are_told_once(gpu: catalogue.Gpu):
    """By its shape, or beside the GPU where the catalogue has no shape with it."""
    shapes = [found for name in catalogue.shape_names() if (found := catalogue.shape(name)) and found.gpu == gpu]
    assert bool(shapes) != (gpu.node is not None)


@by_gpu
def test_narrower_formats_are_computed_faster(gpu: catalogue.Gpu):
    rates = [gpu.dense_tflops.of(number_format) for number_format in ("bf16", "fp8")]
    assert rates[1] == pytest.approx(2 * rates[0], rel=0.01)


def test_weights_in_a_format_that_a_gpu_can_not_compute_in_are_computed_in_bf16():
    hopper, cdna4 = catalogue.gpu("H200"), catalogue.gpu("MI355X")
    assert hopper is not None
    assert cdna4 is not None
    assert hopper.dense_tflops.of("mxfp4") == hopper.dense_tflops.bf16
    assert cdna4.dense_tflops.of("mxfp4") > cdna4.dense_tflops.of("fp8")


def test_a_gpu_of_a_shape_has_the_price_of_the_shape():
    node = catalogue.node_of_gpu("MI355X")
    assert node is not None
    assert node.price_usd_per_gpu_hour == pytest.approx(8.60)


def test_there_are_no_nodes_of_an_unknown_gpu():
    assert catalogue.node_of_gpu("H300") is None
