"""Checks of images and charts in their registries, as nodes without credentials pull them, and updates of the lock.

A chart must be the archive whose SHA-256 the catalogue has.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urljoin

import httpx2
import yaml
from llmd_base.errors import InvalidStack, KitError
from llmd_base.progress import Progress
from pydantic import BaseModel, ValidationError

from llmd_oke.access.oci_client import bounded_content
from llmd_oke.access.registry import (
    Answers,
    Refusal,
    RegistryClient,
    RegistryError,
    StoredImage,
    query_registries,
    stored_image,
)
from llmd_oke.catalogue.container_images import LOCK, OCI_REGISTRY, ContainerImage, lock_file
from llmd_oke.catalogue.entries import VERDICT
from llmd_oke.catalogue.operators import HelmChart
from llmd_oke.catalogue.project import project_problems
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.config import yaml_files
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.planning.container_images import UsedImage, kit_images, project_images
from llmd_oke.values import VALUES, is_checkout, parse_yaml

CHECK = "pull"

_REMEDIES = {
    Refusal.UNREACHABLE: "Try again, or from a machine with a way to it. Whether nodes have one is not known either.",
    Refusal.BUSY: "Try again later. Nodes behind one address share its limit: a mirror in OCI's registry has none.",
    Refusal.UNSOUND: "Is there a proxy between here and the registry that changes answers?",
    Refusal.DENIED: "A public copy, or a release whose images are there: nodes pull without credentials.",
    Refusal.NOT_FOUND: "A tag that the registry has.",
    Refusal.OTHER_PLATFORM: "An image for linux/amd64.",
}
_UNKNOWN = {Refusal.UNREACHABLE, Refusal.BUSY, Refusal.UNSOUND}

CHART_TIMEOUT_S = 20.0
MAX_CHART_BYTES = 32 * 2**20
"""Largest download of a repository's index or a chart's archive; archives have a few hundred KiB."""
DEEPEST = 20
"""Maximum nesting depth of a chart repository's index; a deeper one isn't read."""


class _Listed(BaseModel):
    """A version in a repository's index (Helm documentation, The Chart Repository Guide)."""

    version: str
    urls: list[str]


class _Index(BaseModel):
    entries: dict[str, list[_Listed]]


def registry_findings(images: Sequence[UsedImage], progress: Progress) -> list[Finding]:
    """Check that nodes can pull each image; return a finding for each. Only manifests are requested from registries."""
    findings = query_registries([used.image for used in images], _image_finding, progress)
    by_use = [(used, findings[used.image.reference]) for used in images]
    return [replace(finding, path=used.path, value=f"{used.used_by}: {finding.value}") for used, finding in by_use]


def _image_finding(client: RegistryClient, image: ContainerImage) -> Finding:
    """Check one image; the finding's path in the stack file is empty."""
    try:
        if image.digest is not None:
            return _locked_image_finding(client, image, image.digest)
        return Finding(CHECK, "", Verdict.FINE, f"{image.reference} can be pulled, {client.stored(image).digest} today")
    except RegistryError as error:
        return refused(image, error, "")


def refused(image: ContainerImage, error: RegistryError, path: str) -> Finding:
    """Return the finding for an image that a registry doesn't return: `unknown` if nodes may nevertheless be able to
    pull it, otherwise a problem.
    """
    if error.refusal is Refusal.DENIED and image.registry.endswith(OCI_REGISTRY):
        remedy = "Nodes sign in with their own rights (cluster.iam.grants: ocir), which can't be tried from here."
        return Finding(CHECK, path, Verdict.UNKNOWN, error.message, remedy)
    verdict = Verdict.UNKNOWN if error.refusal in _UNKNOWN else Verdict.PROBLEM
    return Finding(CHECK, path, verdict, error.message, _REMEDIES[error.refusal])


def _locked_image_finding(client: RegistryClient, image: ContainerImage, digest: str) -> Finding:
    """Check a locked image: a problem if the registry no longer has the digest; if only the tag has moved to another
    digest, the finding is fine, with a remark.
    """
    is_gone = False
    try:
        client.stored(image, by_digest=True)
    except RegistryError as error:
        if error.refusal is not Refusal.NOT_FOUND:
            raise
        is_gone = True
    now = client.stored(image).digest
    differs = f"{image.reference} is {now} now, the lock has {digest}"
    if is_gone:
        remedy = "`llmd-oke images update --moved`, if that is meant to be."
        return Finding(CHECK, "", Verdict.PROBLEM, f"{differs}, which the registry has no more", remedy)
    if now != digest:
        remedy = "Nodes pull the locked one. `llmd-oke images update --moved` takes the other, if that is meant to be."
        return Finding(CHECK, "", Verdict.FINE, differs, remedy)
    return Finding(CHECK, "", Verdict.FINE, f"{image.reference} can be pulled as it is locked")


def chart_findings(
    charts: Sequence[HelmChart], progress: Progress, mirror: MirrorRegistry | None = None
) -> list[Finding]:
    """Check that each chart's archive, or that of its copy in the private registry `mirror`, has the catalogue's
    SHA-256; return a finding for each.
    """
    if mirror is not None:
        by_copy = {mirror.copy_of(chart.published).reference: chart for chart in charts}
        images = [mirror.copy_of(chart.published) for chart in charts]
        answers = query_registries(images, lambda client, image: _copy_finding(client, image, by_copy), progress)
        return list(answers.values())
    findings: list[Finding] = []
    with httpx2.Client(timeout=CHART_TIMEOUT_S, follow_redirects=True, max_redirects=3) as client:
        for chart in charts:
            progress.step(f"asking {chart.repository} for {chart.reference} {chart.version}")
            findings.append(_chart_finding(client, chart))
    return findings


def refuse_other_archives(
    charts: Sequence[HelmChart], progress: Progress, mirror: MirrorRegistry | None = None
) -> None:
    """Refuse charts whose archive in the repository, or in the private registry `mirror`, differs from the catalogue's
    SHA-256. Charts without SHA-256 in the catalogue aren't checked.

    Raises:
        KitError: a chart's archive differs.
    """
    for finding in chart_findings([chart for chart in charts if chart.sha256], progress, mirror):
        if finding.verdict is Verdict.PROBLEM:
            raise KitError(f"{finding.value}.", finding.remedy)


def _chart_finding(client: httpx2.Client, chart: HelmChart) -> Finding:
    name = f"chart {chart.reference} {chart.version}"
    try:
        sha256 = _archive_sha256(client, chart)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValidationError, yaml.YAMLError, ValueError, RecursionError) as error:
        why = "its index has another form" if isinstance(error, ValidationError) else str(error) or type(error).__name__
        remedy = "Try again, or from a machine with a way to it."
        return Finding(
            CHECK, "gpuStack", Verdict.UNKNOWN, f"{name}: {chart.repository} gives no archive: {why}", remedy
        )
    if chart.sha256 is None:
        remedy = f"If that is the right one, its sha256 belongs into values/operators, beside version {chart.version}."
        value = f"{name} is {sha256} today; the catalogue has no checksum to hold it to"
        return Finding(CHECK, "gpuStack", Verdict.UNKNOWN, value, remedy)
    if chart.sha256 != sha256:
        remedy = "Deploy nothing with it: somebody published another archive under the same version."
        value = f"{name} is {sha256}, the catalogue has {chart.sha256}"
        return Finding(CHECK, "gpuStack", Verdict.PROBLEM, value, remedy)
    return Finding(CHECK, "gpuStack", Verdict.FINE, f"{name} is the archive of the catalogue")


def _copy_finding(client: RegistryClient, image: ContainerImage, charts: Mapping[str, HelmChart]) -> Finding:
    chart = charts[image.reference]
    try:
        digests = [layer.digest for layer in client.layers(image)]
    except RegistryError as error:
        return refused(image, error, "gpuStack")
    if chart.sha256 is None or f"sha256:{chart.sha256}" in digests:
        return Finding(CHECK, "gpuStack", Verdict.FINE, f"{image.reference} is the archive of the catalogue")
    value = f"{image.reference} has {' and '.join(digests) or 'no archive'}, the catalogue sha256:{chart.sha256}"
    remedy = "`llmd-oke images copy-list` says what to copy; deploy nothing with another archive."
    return Finding(CHECK, "gpuStack", Verdict.PROBLEM, value, remedy)


def _archive_sha256(client: httpx2.Client, chart: HelmChart) -> str:
    """Return the SHA-256 of the archive that Helm would install according to the repository's index.

    Raises:
        ValueError: the index has no such chart and version, or isn't safe to parse.
    """
    index_url = f"{chart.repository}/index.yaml"
    text = bounded_content(client, index_url, MAX_CHART_BYTES)
    _refuse_slow_yaml(text, index_url)
    index = _Index.model_validate(parse_yaml(text))
    urls = [
        url
        for listed in index.entries.get(chart.reference, ())
        if listed.version == chart.version
        for url in listed.urls
    ]
    if not urls:
        raise ValueError(f"{index_url} has no {chart.reference} {chart.version}")
    return hashlib.sha256(bounded_content(client, urljoin(index_url, urls[0]), MAX_CHART_BYTES)).hexdigest()


def _refuse_slow_yaml(text: bytes, url: str) -> None:
    """Refuse YAML whose parsing may take long: with aliases, or deeply nested, as the time grows with the square of the
    depth.

    Raises:
        ValueError: the text has aliases, or is nested more than `DEEPEST` times.
    """
    depth = 0
    for event in cast("Iterable[object]", yaml.parse(text, yaml.CSafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:
            raise ValueError(f"{url} has aliases, or is nested more than {DEEPEST} times")


NOT_ASKED = "its registry was not asked"
"""Beginning of the `reason` of a lock's entry whose registry hasn't been asked for the digest yet."""

UNANSWERED = {Refusal.UNREACHABLE, Refusal.BUSY, Refusal.UNSOUND}
"""Refusals that don't concern the image itself, so that the lock isn't changed."""


@dataclass(frozen=True)
class LockUpdate:
    """New text of the image lock, and the images whose entries weren't updated: `moved` has the old and new digest of
    tags that moved, `unanswered` the reason for images whose registry gave no answer.
    """

    text: str
    moved: Mapping[str, tuple[str, str]]
    unanswered: Mapping[str, str]


class RegistryNews(NamedTuple):
    """Path and text of a lock of image digests, and the update that the registries' answers imply, which isn't written
    yet.
    """

    path: Path
    before: str
    update: LockUpdate


def registry_news(
    project: Path, progress: Progress, *, take_moved: bool = False, with_sizes: bool = True
) -> RegistryNews:
    """Query the registries of all images in a project's own lock; in the kit's lock if there is no project, or if it is
    a checkout of the kit. With `take_moved`, the new digest of a moved tag replaces the lock's. Without sizes few
    requests count as pulls.

    Raises:
        InvalidStack: the project's own entries are wrong.
    """
    path, images = lock_file(), kit_images()
    if (project / "Pulumi.yaml").is_file() and not is_checkout(project):
        if problems := project_problems():
            raise InvalidStack(problems, VERDICT)
        path, images = project / VALUES / LOCK.folder / path.name, project_images()
    new = {"images": {image.reference: {"digest": None, "reason": NOT_ASKED} for image in images}}
    before = path.read_text(encoding="utf-8") if path.is_file() else yaml_files.text_of(new)
    answers = query_registries(images, partial(stored_image, with_size=with_sizes), progress)
    return RegistryNews(
        path, before, lock_update(before, images, answers, datetime.now(UTC).date(), take_moved=take_moved)
    )


def lock_update(
    text: str, images: Sequence[ContainerImage], answers: Answers, today: date, *, take_moved: bool = False
) -> LockUpdate:
    """Return the lock with the digests that the registries answered, and the entries that weren't updated.

    Args:
        text: the lock's present text.
        images: all images that the lock must have, sorted; entries of others are removed.
        answers: the results of the images' lookups, by reference.
        today: the date of the lookups.
        take_moved: whether the new digest of a moved tag replaces the lock's digest.
    """
    document = yaml_files.load(text)
    entries: Any = document["images"]
    references = [image.reference for image in images]
    for stale in [reference for reference in entries if reference not in references]:
        del entries[stale]
    moved: dict[str, tuple[str, str]] = {}
    unanswered: dict[str, str] = {}
    for i, image in enumerate(images):
        reference, answer = image.reference, answers[image.reference]
        if reference not in entries:
            entries.insert(i, reference, yaml_files.new_map({"digest": None, "reason": NOT_ASKED}))
        if isinstance(answer, RegistryError):
            if answer.refusal in UNANSWERED or entries[reference]["digest"] is not None:
                unanswered[reference] = answer.message
            elif entries[reference]["reason"].startswith(NOT_ASKED):
                entries[reference]["reason"] = answer.message
            continue
        known = entries[reference]["digest"]
        if known not in {None, answer.digest} and not take_moved:
            moved[reference] = known, answer.digest
            continue
        _write(entries[reference], answer, f"{image.registry}, {today.isoformat()}")
    return LockUpdate(yaml_files.dump(document, text), moved, unanswered)


def _write(entry: Any, answer: StoredImage, source: str) -> None:
    """Write the registry's answer into an entry of the lock. ruamel.yaml attaches a comment before the next entry to
    the last key of this one, so that the comment must be moved.
    """
    comment = entry.ca.items.pop(list(entry)[-1], None)
    if entry["digest"] != answer.digest:
        entry["digest"], entry["source"] = answer.digest, source
    for key in ("reason", "gone"):
        entry.pop(key, None)
    if answer.download_bytes is not None:
        entry["download_bytes"] = answer.download_bytes
    if comment is not None:
        entry.ca.items[list(entry)[-1]] = comment
