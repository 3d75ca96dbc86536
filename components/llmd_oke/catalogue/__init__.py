"""Typed access to the data in `values/`: shapes, models and releases."""

from llmd_oke.catalogue.images import Image, image, image_names
from llmd_oke.catalogue.models import Model, model, model_names, model_of_repository
from llmd_oke.catalogue.releases import Release, release, release_names
from llmd_oke.catalogue.shapes import Shape, shape, shape_names

__all__ = [
    "Image",
    "Model",
    "Release",
    "Shape",
    "image",
    "image_names",
    "model",
    "model_names",
    "model_of_repository",
    "release",
    "release_names",
    "shape",
    "shape_names",
]
