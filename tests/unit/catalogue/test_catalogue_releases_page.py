"""The page of the docs about releases, which is made from `values/releases` and `values/endpoint-pickers`."""

import os
from collections.abc import Iterator
from pathlib import Path

from llmd_oke import catalogue
from llmd_oke.catalogue.endpoint_pickers import KnownLimit
from llmd_oke.catalogue.releases import Release

PAGE = Path(__file__).parents[3] / "docs" / "releases.md"


def test_the_page_of_the_docs_is_what_the_catalogue_says():
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes it anew."""
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


def test_each_known_limit_says_where_it_is_from():
    assert [limit for release in releases() for limit in limits(release) if "https://" not in limit.source] == []


def releases() -> list[Release]:
    """All releases, the newest first."""
    known = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
    return sorted(known, key=lambda release: -release.order)


def limits(release: Release) -> tuple[KnownLimit, ...]:
    return (*release.endpoint_picker.dialect.limits, *release.vllm.limits)


def page() -> str:
    """The page of the docs."""
    names = [release.name for release in releases()]
    lines = [
        "# Releases of llm-d",
        "",
        "What the kit deploys of each: versions that llm-d released together, and what they are known not to do. A",
        "stack file names one (`release`); anything else is an `override`. Made from `values/releases` and",
        "`values/endpoint-pickers`.",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    columns = [dict(rows(release)) for release in releases()]
    lines += [f"| {row} | {' | '.join(column[row] for column in columns)} |" for row in columns[0]]
    for release in releases():
        lines += ["", f"## Known limits of {release.name}", ""]
        lines += [f"- {limit.text} ({link(limit.source)})" for limit in limits(release)] or ["None is known."]
    return "\n".join([*lines, ""])


def link(source: str) -> str:
    """A source in Markdown: an address, and perhaps what of it is meant."""
    address, _, what = source.partition(", ")
    return f"[{what or 'source'}]({address})"


def rows(release: Release) -> Iterator[tuple[str, str]]:
    picker, vllm, backend = release.endpoint_picker, release.vllm, release.vllm.attention_backend
    yield "source", f"[llm-d]({release.source})"
    gone = "; ".join(f"`{image}`: {why.strip()}" for image, why in release.images_gone.items())
    yield "can be pulled", f"no. {gone}" if gone else "yes"
    for what, image in (
        ("endpoint picker", picker.image),
        ("routing sidecar", release.routing_sidecar.image),
        ("Envoy", release.proxy.image),
        ("vLLM", vllm.image),
    ):
        yield what, f"`{image.reference}`{'' if image.digest else ' (tag alone)'}"
    yield "definitions", f"Gateway API Inference Extension {release.crds.version}"
    yield "chart that objects are held to", release.router.chart
    yield "endpoint pickers of a router", str(release.router.replicas)
    yield "router profiles", ", ".join(picker.dialect.profiles)
    yield "APIs that are prefilled remotely", ", ".join(picker.dialect.disaggregating_apis)
    yield "attention backend", f"{backend.default}; with a KV connector {backend.kv_connector}"
    yield "backends for mixed TP", ", ".join(backend.split_by_heads) or "none"
    yield "block size", f"{vllm.block_size.default}; with a KV connector {vllm.block_size.kv_connector}"
    yield (
        "clients can't name a prefill server",
        "by the sidecar too" if release.routing_sidecar.ssrf_protection else "by Envoy",
    )
