"""Comparison of the vLLM project's recipes in a checkout of vllm-project/recipes with the recipes that the catalogue's
models are based on.
"""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml
from llmd_base.errors import KitError

from llmd_oke.catalogue.models import CatalogueModel

AMD_GPUS = ("mi300x", "mi325x", "mi355x")
"""Names of AMD's GPUs in recipes."""

_SOURCE = re.compile(
    r"https://github\.com/vllm-project/recipes/blob/(?P<commit>[0-9a-f]{7,40})/(?P<path>models/[\w./-]+)"
)
_WORDS = (
    "guide",
    "description",
    "title",
    "date_updated",
    "date_added",
    "performance_headline",
    "related_recipes",
    "note",
)
"""Keys of a recipe that don't affect how a model is served, so that a change of them isn't reported."""

_GIT_LIMIT_S = 60.0


@dataclass(frozen=True)
class RecipeDifference:
    """Key of a model's recipe whose value differs from the version that the catalogue entry cites; a value is None if
    the key is missing.
    """

    model: str
    path: str
    before: object
    after: object


@dataclass(frozen=True)
class RecipeNews:
    """Changes of the vLLM project's recipes since the catalogue entries of models were written.

    Attributes:
        commit: commit of the checkout.
        differences: changed keys.
        further: repositories of models without an entry whose recipe is verified on AMD GPUs.
        gone: models whose recipe doesn't exist any more.
        unknown: models whose cited version of the recipe is missing in the checkout.
    """

    commit: str
    differences: tuple[RecipeDifference, ...]
    further: tuple[str, ...]
    gone: tuple[str, ...]
    unknown: tuple[str, ...]


def recipe_news(checkout: Path, models: Iterable[CatalogueModel]) -> RecipeNews:
    """Return the differences between the recipes of a checkout and the versions that the models' entries cite.

    Raises:
        KitError: the directory is no checkout of vllm-project/recipes, or a recipe can't be read.
    """
    commit, known = _git(checkout, "rev-parse", "--short", "HEAD").decode().strip(), list(models)
    if not _git(checkout, "ls-tree", "HEAD", "models"):
        raise KitError(f"{checkout} has no recipes.", "A clone of https://github.com/vllm-project/recipes.")
    with tarfile.open(fileobj=io.BytesIO(_git(checkout, "archive", "--format=tar", "HEAD", "models"))) as archive:
        texts = {member.name: file.read().decode() for member in archive if (file := archive.extractfile(member))}
    differences, gone, unknown = list[RecipeDifference](), list[str](), list[str]()
    for model in known:
        source = _SOURCE.fullmatch(model.recipe.source) if model.recipe else None
        if source is None:
            continue
        if (after := texts.get(source["path"])) is None:
            gone.append(model.name)
        elif (before := _version(checkout, source["commit"], source["path"])) is None:
            unknown.append(model.name)
        elif before != after:
            old, new = (dict(_leaves(_recipe(text, source["path"]), "")) for text in (before, after))
            changed = [path for path in dict.fromkeys([*old, *new]) if old.get(path) != new.get(path)]
            differences += [RecipeDifference(model.name, path, old.get(path), new.get(path)) for path in changed]
    repositories = {model.repository for model in known}
    of_amd = [(path, text) for path, text in sorted(texts.items()) if any(gpu in text for gpu in AMD_GPUS)]
    further = [name for path, text in of_amd if (name := _verified(_recipe(text, path))) is not None]
    return RecipeNews(
        commit,
        tuple(differences),
        tuple(name for name in further if name not in repositories),
        tuple(gone),
        tuple(unknown),
    )


def _version(checkout: Path, commit: str, path: str) -> str | None:
    """Return the text of a recipe at a commit; None if the checkout lacks that commit or file."""
    try:
        return _git(checkout, "show", f"{commit}:{path}").decode()
    except KitError:
        return None


def _recipe(text: str, path: str) -> Mapping[str, object]:
    try:
        document: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise KitError(f"{path} is no YAML: {error}") from error
    return cast("Mapping[str, object]", document) if isinstance(document, Mapping) else {}


def _verified(recipe: Mapping[str, object]) -> str | None:
    """Return the Hugging Face repository of a recipe that is verified on an AMD GPU; None for other recipes."""
    leaves = dict(_leaves(recipe, ""))
    if not any(leaves.get(f"meta.hardware.{gpu}") == "verified" for gpu in AMD_GPUS):
        return None
    name = leaves.get("model.model_id")
    return str(name) if name else None


def _leaves(value: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    """Yield the path and value of each scalar or list of a recipe, without the keys in `_WORDS`."""
    for key, item in value.items():
        if key in _WORDS:
            continue
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(item, Mapping):
            yield from _leaves(cast("Mapping[str, object]", item), path)
        else:
            yield path, item


def _git(checkout: Path, *arguments: str) -> bytes:
    argv = ["git", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=_GIT_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KitError(f"git can't be asked about {checkout}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise KitError(
            f"{checkout} is no checkout of recipes: {said[-1]}", "git clone https://github.com/vllm-project/recipes"
        )
    return done.stdout
