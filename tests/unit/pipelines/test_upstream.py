"""News of upstream: tags of releases on a Git server, recipes, and sources that give no answer."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke.operations.registries import LockUpdate, RegistryNews
from llmd_oke.pipelines import upstream
from llmd_oke.pipelines.revisions import git
from llmd_oke.pipelines.upstream import ReleaseSource, UpstreamSources, new_releases, upstream_markdown, upstream_news
from repositories_for_tests import SOMEBODY

TAGS = ("v0.9.0", "v0.10.0", "v0.10.0-rc.1", "v0.11.0", "v1.0.0", "v1.0.0-rc.2", "chart-9.9.9")


@pytest.fixture
def server(tmp_path: Path) -> str:
    repository = tmp_path / "server"
    git(tmp_path, "init", "--quiet", str(repository))
    git(repository, *SOMEBODY, "commit", "--quiet", "--allow-empty", "--message", "first")
    for tag in TAGS:
        git(repository, *SOMEBODY, "tag", "--annotate", "--message", tag, tag)
    return repository.as_uri()


def source(url: str) -> ReleaseSource:
    return ReleaseSource(url=url, tags=r"^v(\d+\.\d+\.\d+)$", entry="llm-d-{version}")


def test_upstream_news_lists_newer_releases_but_no_release_candidates(server: str):
    assert new_releases(source(server)) == ["v1.0.0", "v0.11.0"]


def test_the_kits_upstream_sources_name_vllm_recipes_and_releases():
    known = upstream.upstream_sources()
    assert known.recipes.startswith("https://")
    assert known.releases


@pytest.mark.parametrize("url", ["file:///nowhere", "--upload-pack=touch x"])
def test_an_upstream_repository_that_does_not_exist_is_an_error(url: str):
    with pytest.raises(KitError, match="`git ls-remote` failed"):
        new_releases(source(url))


def test_an_upstream_source_that_does_not_answer_hides_no_news_of_the_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    silent = {f"docker.io/{name}:1": "refused" for name in ("y", "z")}
    moved = LockUpdate("text", {"docker.io/x:1": ("sha256:a", "sha256:b")}, silent)
    registries = RegistryNews(tmp_path / "lock.yaml", "text", moved)
    monkeypatch.setattr(upstream, "registry_news", lambda *_, **_options: registries)
    sources = UpstreamSources(recipes="file:///nowhere", releases=(source(server),))
    news = upstream_news(tmp_path, (), sources, Listener())
    assert news.images == ("docker.io/x:1: sha256:b, and was sha256:a",)
    assert news.releases == (f"{server}: v1.0.0", f"{server}: v0.11.0")
    assert set(news.unanswered) == {*silent, "file:///nowhere"}
    said = upstream_markdown(news)
    assert said.index("**Tags that name another image**") < said.index("**Releases**") < said.index("**No answer**")
    assert "- `docker.io/y:1`, `docker.io/z:1`: refused" in said


def test_upstream_news_without_any_change_say_that_nothing_moved():
    assert upstream_markdown(upstream.UpstreamNews()) == "### Upstream\n\nNothing moved.\n"


def test_changed_vllm_recipes_are_listed_with_their_old_and_new_values(monkeypatch: pytest.MonkeyPatch):
    change = SimpleNamespace(model="m", path="base_args[0]", before="a", after="b")
    news = SimpleNamespace(differences=[change], gone=["g"], unknown=["u"], further=["owner/name", "owner/other"])
    lines = list(upstream._recipe_lines(news))  # type: ignore[arg-type]
    assert lines[0] == "m: base_args[0] was a and is b"
    assert len(lines) == 4
