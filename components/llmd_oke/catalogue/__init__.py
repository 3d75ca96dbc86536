"""Typed access to the data in `values/`: shapes, models and releases."""

from llmd_oke.catalogue.models import Model, model, model_names, model_of_repository
from llmd_oke.catalogue.releases import Release, release, release_names
from llmd_oke.catalogue.shapes import Shape, shape, shape_names

__all__ = [
    "Model",
    "Release",
    "Shape",
    "model",
    "model_names",
    "model_of_repository",
    "release",
    "release_names",
    "shape",
    "shape_names",
]
