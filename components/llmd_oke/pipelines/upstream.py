"""News from upstream projects since the catalogue was written: moved tags of images, recipes of vLLM, releases of
llm-d.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_bench.texts import code

from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.recipes import RecipeNews, recipe_news
from llmd_oke.operations.registries import registry_news
from llmd_oke.pipelines.comment import sentence
from llmd_oke.pipelines.records import Line, Lines, PipelineRecord
from llmd_oke.pipelines.revisions import git
from llmd_oke.values import Entry, entry_reader, names
from llmd_oke.version import version_numbers


class ReleaseSource(Entry):
    """Git repository whose tags are releases: `tags` is a regular expression for these tags, with the version as its
    group, `entry` the name of the catalogue's entry with the placeholder `{version}`.
    """

    url: str
    tags: str
    entry: str


class UpstreamSources(Entry):
    """Repositories that are checked for news: recipes of the vLLM project, and those with releases."""

    recipes: str
    releases: tuple[ReleaseSource, ...]


upstream_sources = entry_reader("operations", "upstream", UpstreamSources)
"""Return the repositories that are checked for news (`values/operations/upstream.yaml`)."""


class UpstreamNews(PipelineRecord):
    """News of upstream projects.

    Attributes:
        images: images whose tag has another digest than in the lock.
        recipes: changed recipes, and models that have a new one.
        releases: releases newer than the newest one in the catalogue.
        unanswered: sources that gave no answer, with the reason.
    """

    images: Lines = ()
    recipes: Lines = ()
    releases: Lines = ()
    unanswered: Mapping[Line, Line] = {}


def upstream_news(
    project: Path, models: Sequence[CatalogueModel], sources: UpstreamSources, progress: Progress
) -> UpstreamNews:
    """Check all upstream sources, and return their news; a source that doesn't answer doesn't prevent the
    other checks.
    """
    unanswered: dict[str, str] = {}
    images, recipes, releases = list[str](), list[str](), list[str]()
    progress.step("asking registries for the digests of images")
    path, before, update = registry_news(project, progress, with_sizes=False)
    unanswered |= update.unanswered
    images += [f"{reference}: {now}, and was {known}" for reference, (known, now) in update.moved.items()]
    if update.text != before:
        images.append(f"{path.name} lacks digests that registries have: llmd-oke images update writes them")
    progress.step(f"reading recipes of {sources.recipes}")
    try:
        with TemporaryDirectory(prefix="llmd-oke-") as folder:
            clone = Path(folder) / "recipes"  # with its history, without old files until they are read
            git(Path(folder), "clone", "--quiet", "--filter=blob:none", "--end-of-options", sources.recipes, str(clone))
            recipes += _recipe_lines(recipe_news(clone, models))
    except KitError as error:
        unanswered[sources.recipes] = error.message
    for source in sources.releases:
        progress.step(f"reading tags of {source.url}")
        try:
            releases += [f"{source.url}: {tag}" for tag in new_releases(source)]
        except KitError as error:
            unanswered[source.url] = error.message
    return UpstreamNews(images=tuple(images), recipes=tuple(recipes), releases=tuple(releases), unanswered=unanswered)


def new_releases(source: ReleaseSource) -> list[str]:
    """Return the tags of a repository's releases that are newer than the newest one in the catalogue, the
    newest first.

    Raises:
        KitError: the repository doesn't answer.
    """
    lines = git(Path(), "ls-remote", "--tags", "--refs", "--end-of-options", source.url).splitlines()
    tags = [line.rpartition("refs/tags/")[2] for line in lines]
    versions = {tag: version_numbers(match[1]) for tag in tags if (match := re.fullmatch(source.tags, tag))}
    before, _, after = source.entry.partition("{version}")
    known = [name.removeprefix(before).removesuffix(after) for name in names("releases")]
    newest = max((version_numbers(version) for version in known), default=())
    return sorted(
        (tag for tag, version in versions.items() if version > newest), key=lambda tag: versions[tag], reverse=True
    )


def _recipe_lines(news: RecipeNews) -> Iterator[str]:
    for change in news.differences:
        yield f"{change.model}: {change.path} was {change.before} and is {change.after}"
    yield from (f"{name}: its recipe is gone" for name in news.gone)
    yield from (f"{name}: the version of its recipe is unknown" for name in news.unknown)
    if news.further:
        names = ", ".join(news.further)
        yield f"verified on GPUs of AMD, without an entry in the catalogue ({len(news.further)}): {names}"


def upstream_markdown(news: UpstreamNews) -> str:
    """Return the news from upstream projects as Markdown, for the summary of a job."""
    parts = ["### Upstream"]
    titles = {"Tags that name another image": news.images, "Recipes": news.recipes, "Releases": news.releases}
    for title, lines in titles.items():
        if lines:
            parts.append("\n".join([f"**{title}**", "", *(f"- {sentence(line)}" for line in lines)]))
    if not any(titles.values()):
        parts.append("Nothing moved.")
    if news.unanswered:
        ordered = sorted((why, name) for name, why in news.unanswered.items())
        by_reason = groupby(ordered, key=lambda pair: pair[0])
        lines = [f"- {', '.join(code(name) for _, name in pairs)}: {sentence(why)}" for why, pairs in by_reason]
        parts.append("\n".join(["**No answer**", "", *lines]))
    return "\n\n".join(parts) + "\n"
