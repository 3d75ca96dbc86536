"""Catalogue: typed access to the data in `values/`, both the kit's and the open project's."""

from llmd_oke.catalogue.cluster import OracleImage, image, image_names
from llmd_oke.catalogue.models import CatalogueModel, model, model_names, model_of_repository
from llmd_oke.catalogue.releases import Release, default_release, release, release_names
from llmd_oke.catalogue.shapes import Gpu, GpuNode, NodeHardware, Shape, gpu, gpu_names, node_of_gpu, shape, shape_names
from llmd_oke.config.stack import Override
from llmd_oke.values import open_project

__all__ = [
    "CatalogueModel",
    "Gpu",
    "GpuNode",
    "NodeHardware",
    "OracleImage",
    "Override",
    "Release",
    "Shape",
    "default_release",
    "gpu",
    "gpu_names",
    "image",
    "image_names",
    "model",
    "model_names",
    "model_of_repository",
    "node_of_gpu",
    "open_project",
    "release",
    "release_names",
    "shape",
    "shape_names",
]
