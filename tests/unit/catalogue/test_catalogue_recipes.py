"""News of the vLLM project's recipes, in a repository of two commits."""

import subprocess
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke import catalogue
from llmd_oke.catalogue import CatalogueModel
from llmd_oke.catalogue.models import PublishedRecipe
from llmd_oke.catalogue.recipes import RecipeDifference, recipe_news
from stack_files import known_model

RECIPE = """
meta: {title: Old, date_updated: 2026-01-01, hardware: {mi300x: verified}}
model: {model_id: Qwen/Qwen3-8B, base_args: [--one]}
features: {reasoning: {description: words, args: [--reasoning-parser, qwen3]}}
"""
OTHER = """
meta: {hardware: {h100: verified, mi355x: verified}}
model: {model_id: some/other}
"""


def git(folder: Path, *arguments: str) -> str:
    own = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *own, *arguments], check=True, capture_output=True, text=True
    ).stdout


def commit(folder: Path, **files: str) -> str:
    for name, text in files.items():
        file = folder / "models" / "Qwen" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "recipes")
    return git(folder, "rev-parse", "--short", "HEAD").strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    return tmp_path


def known(at: str, path: str = "models/Qwen/Qwen3-8B.yaml") -> CatalogueModel:
    entry = known_model("qwen3-8b")
    source = f"https://github.com/vllm-project/recipes/blob/{at}/{path}"
    return entry.model_copy(update={"recipe": PublishedRecipe(source=source)})


def test_keys_of_a_vllm_recipe_that_changed_since_the_catalogue_entry_are_reported(checkout: Path):
    before = commit(checkout, **{"Qwen3-8B": RECIPE})
    changed = RECIPE.replace("Old", "New").replace("words", "others").replace("[--one]", "[--two]")
    after = commit(checkout, **{"Qwen3-8B": changed.replace("mi300x: verified", "mi300x: verified, mi325x: verified")})
    news = recipe_news(checkout, [known(before)])
    assert news.commit == after
    assert list(news.differences) == [
        RecipeDifference("qwen3-8b", "model.base_args", ["--one"], ["--two"]),
        RecipeDifference("qwen3-8b", "meta.hardware.mi325x", None, "verified"),
    ]
    assert recipe_news(checkout, [known(after)]).differences == ()


def test_models_that_vllm_recipes_verify_on_amd_gpus_without_an_entry_are_reported(checkout: Path):
    at = commit(checkout, **{"Qwen3-8B": RECIPE, "other": OTHER, "more": OTHER.replace("mi355x", "b200")})
    assert recipe_news(checkout, [known(at)]).further == ("some/other",)


def test_deleted_vllm_recipes_and_commits_that_the_clone_lacks_are_reported(checkout: Path):
    at = commit(checkout, **{"Qwen3-8B": RECIPE})
    news = recipe_news(checkout, [known(at, "models/Qwen/none.yaml"), known("0123456")])
    assert (news.gone, news.unknown, news.differences) == (("qwen3-8b",), ("qwen3-8b",), ())


def test_a_checkout_without_vllm_recipes_is_refused(checkout: Path, tmp_path_factory: pytest.TempPathFactory):
    commit(checkout)
    with pytest.raises(KitError, match="has no recipes"):
        recipe_news(checkout, [])
    with pytest.raises(KitError, match="is no checkout of recipes"):
        recipe_news(tmp_path_factory.mktemp("empty"), [])


def test_every_catalogue_entry_with_a_vllm_recipe_links_a_version_of_it():
    recipes = [entry.recipe for entry in map(known_model, catalogue.model_names()) if entry.recipe]
    assert recipes
    assert all("/blob/" in recipe.source for recipe in recipes)
