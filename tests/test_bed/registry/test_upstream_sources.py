"""News of upstream as a night looks for it: tags at a real registry, recipes and releases at Git servers."""

import json
from pathlib import Path

import pytest
import yaml
from llmd_oke.cli.main import app
from llmd_oke.pipelines.revisions import git
from llmd_oke.pipelines.upstream import upstream_sources
from project_entries import model_entry, write_entry
from registry_for_tests import AMD64
from registry_program import RegistryProgram
from typer.testing import CliRunner

OWN = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
RECIPE = {"model": {"model_id": "acme/first"}, "base_args": ["--max-model-len", "8192"]}


def commit(repository: Path, message: str) -> str:
    git(repository, "add", "--all")
    git(repository, *OWN, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """A repository of recipes, with one of the model `acme/first`."""
    repository = tmp_path / "recipes"
    git(tmp_path, "init", "--quiet", str(repository))
    git(repository, "config", "uploadpack.allowFilter", "true")
    file = repository / "models" / "acme" / "first.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(RECIPE))
    commit(repository, "the recipe")
    return repository


@pytest.fixture
def project(tmp_path: Path, recipes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a model of its own that cites the recipe; releases come from a repository with a newer tag."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text("name: own\nruntime: python\n")
    cited = f"https://github.com/vllm-project/recipes/blob/{git(recipes, 'rev-parse', 'HEAD')}/models/acme/first.yaml"
    write_entry(folder, "models/first", model_entry("first", recipe={"source": cited}))
    releases = tmp_path / "releases"
    git(tmp_path, "init", "--quiet", str(releases))
    commit(releases, "a release")
    git(releases, *OWN, "tag", "--annotate", "--message", "newer", "v99.0.0")
    sources = {upstream_sources().recipes: recipes, upstream_sources().releases[0].url: releases}
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(sources)))
    for index, (address, repository) in enumerate(sources.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{index}", f"url.{repository.as_uri()}.insteadOf")
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{index}", address)
    monkeypatch.setattr("llmd_oke.planning.container_images.kit_images", lambda: ())  # their registries are elsewhere
    return folder


def write_lock(project: Path, registry: RegistryProgram, **digests: str) -> None:
    """Lock images of the registry, by their repositories' names."""
    images = {
        f"{registry.address}/own/{name}:v1": {"digest": digest, "source": "a test"} for name, digest in digests.items()
    }
    write_entry(project, "container-images/lock", {"images": images})


def look(project: Path, expected: int) -> dict[str, object]:
    ended = CliRunner().invoke(app, ["pipeline", "upstream", "--project", str(project), "--json"])
    assert ended.exit_code == expected, ended.output
    return json.loads(ended.stdout)


def test_the_nightly_check_reports_moved_tags_changed_recipes_and_newer_releases(
    project: Path, recipes: Path, registry: RegistryProgram
):
    kept = registry.push_index("own/kept", "v1", AMD64)
    before = registry.push("own/moved", "v1", 10)
    after = registry.push("own/moved", "v1", 11)
    write_lock(project, registry, kept=kept, moved=before)
    changed = {**RECIPE, "base_args": ["--max-model-len", "4096"]}
    (recipes / "models" / "acme" / "first.yaml").write_text(yaml.safe_dump(changed))
    commit(recipes, "another length")
    news = look(project, expected=1)
    assert news["images"] == [f"{registry.address}/own/moved:v1: {after}, and was {before}"]
    (recipe,) = [line for line in news["recipes"] if line.startswith("first: ")]  # type: ignore[attr-defined]
    assert "base_args was ['--max-model-len', '8192'] and is ['--max-model-len', '4096']" in recipe
    assert news["releases"] == [f"{upstream_sources().releases[0].url}: v99.0.0"]
    assert news["unanswered"] == {}


def test_a_nightly_check_that_a_registry_refuses_exits_with_3(project: Path, registry: RegistryProgram):
    registry.private.add("own/private")
    write_lock(project, registry, private=registry.push("own/private", "v1", 10))
    (why,) = look(project, expected=3)["unanswered"].values()  # type: ignore[attr-defined]
    assert "to nobody who isn't signed in" in why
