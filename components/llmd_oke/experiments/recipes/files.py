"""Recipes by name (`values/recipes`) or as a file of the user's."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llmd_oke.catalogue.files import names, values_folder
from llmd_oke.config import document, shape_problems
from llmd_oke.errors import KitError, Refused
from llmd_oke.experiments.recipes.recipe import Recipe
from llmd_oke.experiments.recipes.rules import recipe_problems

KIND = "recipes"
VERDICT = "the recipe can't be run"


def find(name: str) -> Path:
    """The file of a recipe: a name that the kit has, or a path that ends in .yaml or .yml.

    Raises:
        KitError: there is no such recipe.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else values_folder() / KIND / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(names(KIND))
        raise KitError(f"There is no recipe {name}.", f"Recipes here: {known}; or give the path of a file in YAML.")
    return path


def load(name: str) -> Recipe:
    """The recipe of that name or path.

    Raises:
        KitError: there is no such recipe, or it is not YAML.
        Refused: something is wrong with it; carries every problem.
    """
    content = document.read(find(name))
    if problems := list(content.problems()):
        raise Refused(problems, VERDICT)
    return validate(content.value)


def validate(value: Any) -> Recipe:
    """The recipe that an object spells.

    Raises:
        Refused: something is wrong with it; carries every problem.
    """
    try:
        recipe = Recipe.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise Refused(shape_problems.problems(error.errors(include_url=False), value, Recipe), VERDICT) from error
    if problems := recipe_problems(recipe):
        raise Refused(problems, VERDICT)
    return recipe
