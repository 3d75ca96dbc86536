"""Lists of the copies for a private registry, as plain text, as commands of `crane` and Helm, or as skopeo's YAML."""

import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import yaml
from llmd_base.records import document

from llmd_oke.planning.container_images import Copy


class CopyForm(StrEnum):
    """Format in which a list of image and chart copies is printed."""

    PLAIN = "plain"
    CRANE = "crane"
    SKOPEO = "skopeo"


def as_copy(copy: Copy) -> dict[str, Any]:
    """Return a copy of an image or chart as plain data: a chart of a chart repository with the SHA-256 of its archive,
    everything else with its digest.
    """
    plain = {
        "kind": "image or chart" if copy.archive is None else "chart archive",
        "source": copy.source.reference,
        "digest": copy.source.digest,
        "destination": copy.destination.reference,
    }
    if copy.archive is None:
        return plain
    chart = copy.archive
    source = f"{chart.repository}/{chart.reference}"
    return {**plain, "source": source, **document("version sha256", chart)}


def copy_text(copies: Sequence[Copy], prefix: str, form: CopyForm) -> str:
    """Return the list of copies in a format; `prefix` is that of the private registry."""
    if form is CopyForm.CRANE:
        return "\n".join(["set -eu", *(_commands(copy) for copy in copies)])
    if form is CopyForm.SKOPEO:
        return _skopeo(copies, prefix)
    rows = [
        (copy.source.pinned if copy.archive is None else f"{copy.archive.repository} {copy.archive.reference}", copy)
        for copy in copies
    ]
    return "\n".join(f"{source}  {copy.destination.reference}" for source, copy in rows)


def _commands(copy: Copy) -> str:
    """Return the commands of a copy. `crane` copies all platforms of an image index, which keeps the digest."""
    if copy.archive is None:
        return shlex.join(["crane", "copy", copy.source.pinned, copy.destination.reference])
    chart, folder = copy.archive, copy.destination.repository.rpartition("/")[0]
    file = f"{chart.reference}-{chart.version}.tgz"
    version = ["--version", chart.version]
    lines = [shlex.join(["helm", "pull", chart.reference, "--repo", chart.repository or "", *version])]
    if chart.sha256:
        lines.append(f"echo {shlex.quote(f'{chart.sha256}  {file}')} | sha256sum --check -")
    lines.append(shlex.join(["helm", "push", file, f"oci://{copy.destination.registry}/{folder}"]))
    return "\n".join(lines)


def _skopeo(copies: Sequence[Copy], prefix: str) -> str:
    """Return skopeo's list, by tag; `preflight` compares the digests with the lock. Charts of chart repositories are no
    images, and appear as commands in comments.
    """
    registries: dict[str, dict[str, dict[str, list[str]]]] = {}
    for copy in copies:
        if copy.archive is None:
            images = registries.setdefault(copy.source.registry, {"images": {}})["images"]
            images.setdefault(copy.source.repository, []).append(copy.source.tag)
    charts = [line for copy in copies if copy.archive is not None for line in _commands(copy).splitlines()]
    command = f"# skopeo sync --all --preserve-digests --scoped --src yaml --dest docker FILE {prefix}"
    return "\n".join([command, *(f"# {line}" for line in charts), yaml.safe_dump(registries).rstrip()])
