"""Whether nodes can pull every container image of a stack, which they do without credentials, and whether its charts
are those that the catalogue names."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import cast
from urllib.parse import urljoin

import httpx
import yaml
from pydantic import BaseModel, ValidationError

from llmd_oke.access.objects import bounded_content
from llmd_oke.access.registry import Refusal, RegistryClient, RegistryError, ask_all
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.operators import HelmChart
from llmd_oke.errors import KitError
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.planning.container_images import UsedImage
from llmd_oke.progress import Progress

CHECK = "pull"

OCI_REGISTRY = ".ocir.io"
"""How the names of OCI's registries end, for which nodes sign in with rights of their own."""

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
MOST_CHART_BYTES = 32 * 2**20
"""Of an index or an archive; charts have a few hundred KiB."""
DEEPEST = 20
"""Of an index, whose entries have lists in mappings in lists."""


class _Listed(BaseModel):
    """A version in a repository's index (Helm documentation, The Chart Repository Guide)."""

    version: str
    urls: list[str]


class _Index(BaseModel):
    entries: dict[str, list[_Listed]]


def registry_findings(images: Sequence[UsedImage], progress: Progress) -> list[Finding]:
    """A finding for each image. Registries are asked for manifests only; nothing is pulled."""
    findings = ask_all([used.image for used in images], _looked_for, progress)
    return [_placed(used, findings[used.image.reference]) for used in images]


def _placed(used: UsedImage, finding: Finding) -> Finding:
    return Finding(CHECK, used.path, finding.verdict, f"{used.used_by}: {finding.value}", finding.remedy)


def _looked_for(client: RegistryClient, image: ContainerImage) -> Finding:
    """What there is to say of an image, wherever the stack file brings it from."""
    try:
        if image.digest is not None:
            return _pinned(client, image, image.digest)
        return _fine(f"{image.reference} can be pulled, {client.stored(image).digest} today")
    except RegistryError as error:
        return _refused(image, error)


def _pinned(client: RegistryClient, image: ContainerImage, digest: str) -> Finding:
    """A locked image: what counts is its digest. A tag that moved says that somebody published something else."""
    gone: RegistryError | None = None
    try:
        client.stored(image, by_digest=True)
    except RegistryError as error:
        if error.refusal is not Refusal.NOT_FOUND:
            raise
        gone = error
    now = client.stored(image).digest
    differs = f"{image.reference} is {now} now, the lock has {digest}"
    if gone is not None:
        remedy = "`llmd-oke images update --moved`, if that is meant to be."
        return Finding(CHECK, "", Verdict.PROBLEM, f"{differs}, which the registry has no more", remedy)
    if now != digest:
        remedy = "Nodes pull the locked one. `llmd-oke images update --moved` takes the other, if that is meant to be."
        return Finding(CHECK, "", Verdict.FINE, differs, remedy)
    return _fine(f"{image.reference} can be pulled as it is locked")


def _refused(image: ContainerImage, error: RegistryError) -> Finding:
    if error.refusal is Refusal.DENIED and image.registry.endswith(OCI_REGISTRY):
        remedy = "Nodes sign in with their own rights (cluster.iam.grants: ocir), which can't be tried from here."
        return Finding(CHECK, "", Verdict.UNKNOWN, error.message, remedy)
    verdict = Verdict.UNKNOWN if error.refusal in _UNKNOWN else Verdict.PROBLEM
    return Finding(CHECK, "", verdict, error.message, _REMEDIES[error.refusal])


def _fine(value: str) -> Finding:
    return Finding(CHECK, "", Verdict.FINE, value)


def chart_findings(charts: Sequence[HelmChart], progress: Progress) -> list[Finding]:
    """A finding for each chart of a repository: whether its archive is the one of the catalogue."""
    findings: list[Finding] = []
    with httpx.Client(timeout=CHART_TIMEOUT_S, follow_redirects=True, max_redirects=3) as client:
        for chart in charts:
            progress.step(f"asking {chart.repository} for {chart.reference} {chart.version}")
            findings.append(_of_chart(client, chart))
    return findings


def refuse_other_archives(charts: Sequence[HelmChart], progress: Progress) -> None:
    """Before Helm fetches them: a chart whose checksum is known, and whose repository has another archive, is not used.

    Raises:
        KitError: there is such a chart.
    """
    for finding in chart_findings([chart for chart in charts if chart.sha256], progress):
        if finding.verdict is Verdict.PROBLEM:
            raise KitError(f"{finding.value}.", finding.remedy)


def _of_chart(client: httpx.Client, chart: HelmChart) -> Finding:
    name = f"chart {chart.reference} {chart.version}"
    try:
        found = _archive_sha256(client, chart)
    except (httpx.HTTPError, httpx.InvalidURL, ValidationError, yaml.YAMLError, ValueError, RecursionError) as error:
        why = "its index has another form" if isinstance(error, ValidationError) else str(error) or type(error).__name__
        remedy = "Try again, or from a machine with a way to it."
        return Finding(
            CHECK, "gpuStack", Verdict.UNKNOWN, f"{name}: {chart.repository} gives no archive: {why}", remedy
        )
    if chart.sha256 is None:
        remedy = f"If that is the right one, its sha256 belongs into values/operators, beside version {chart.version}."
        value = f"{name} is {found} today; the catalogue has no checksum to hold it to"
        return Finding(CHECK, "gpuStack", Verdict.UNKNOWN, value, remedy)
    if chart.sha256 != found:
        remedy = "Deploy nothing with it: somebody published another archive under the same version."
        value = f"{name} is {found}, the catalogue has {chart.sha256}"
        return Finding(CHECK, "gpuStack", Verdict.PROBLEM, value, remedy)
    return Finding(CHECK, "gpuStack", Verdict.FINE, f"{name} is the archive of the catalogue")


def _archive_sha256(client: httpx.Client, chart: HelmChart) -> str:
    """The SHA-256 of what Helm would install, which finds it by the index of the repository."""
    index_url = f"{chart.repository}/index.yaml"
    text = bounded_content(client, index_url, MOST_CHART_BYTES)
    _refuse_traps(text, index_url)
    index = _Index.model_validate(yaml.load(text, yaml.CSafeLoader))
    urls = [
        url
        for listed in index.entries.get(chart.reference, ())
        if listed.version == chart.version
        for url in listed.urls
    ]
    if not urls:
        raise ValueError(f"{index_url} has no {chart.reference} {chart.version}")
    return hashlib.sha256(bounded_content(client, urljoin(index_url, urls[0]), MOST_CHART_BYTES)).hexdigest()


def _refuse_traps(text: bytes, url: str) -> None:
    """YAML that takes long to be read: the parser's time grows with the square of the depth, and aliases double."""
    depth = 0
    for event in cast("Iterable[object]", yaml.parse(text, yaml.CSafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:
            raise ValueError(f"{url} has aliases, or is nested more than {DEEPEST} times")
