"""Typed access to the data in `values/`: shapes, models and releases."""

from llmd_oke.catalogue.gpus import Gpu, gpu, gpu_names
from llmd_oke.catalogue.images import Image, image, image_names
from llmd_oke.catalogue.models import Model, model, model_names, model_of_repository
from llmd_oke.catalogue.nodes import GpuNode, Node, node_of_gpu
from llmd_oke.catalogue.releases import Override, Release, release, release_names
from llmd_oke.catalogue.shapes import Shape, shape, shape_names

__all__ = [
    "Gpu",
    "GpuNode",
    "Image",
    "Model",
    "Node",
    "Override",
    "Release",
    "Shape",
    "gpu",
    "gpu_names",
    "image",
    "image_names",
    "model",
    "model_names",
    "model_of_repository",
    "node_of_gpu",
    "release",
    "release_names",
    "shape",
    "shape_names",
]
