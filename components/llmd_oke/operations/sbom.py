"""Software bill of materials (SBOM) of a stack and of the kit that deploys it, in CycloneDX 1.6."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from llmd_base.records import document

from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.catalogue.operators import operator
from llmd_oke.planning import Plan
from llmd_oke.planning.cluster_plan import GpuPoolPlan
from llmd_oke.planning.container_images import images_of, images_of_operator, operators_of
from llmd_oke.program.models import model_cache_mount
from llmd_oke.sdk_modules import plugin_version
from llmd_oke.serving.vllm import pinned_revision

SPECIFICATION = "1.6"
KIT = "llmd-oke"
PLUGINS = {"pulumi-kubernetes": "pulumi_kubernetes", "pulumi-oci": "pulumi_oci"}
"""Pulumi providers, with the Python packages that have the same version."""

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
"""Name and extras of a requirement (PEP 508)."""
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
"""Extra in the marker of a requirement (PEP 508)."""


@dataclass(frozen=True)
class SbomComponent:
    """Component of an SBOM: CycloneDX type (`kind`), package URL (`purl`, None if its kind has none), SHA-256, further
    properties (`facts`), and the references of known subcomponents (`needs`). `reference` is its `bom-ref`.
    """

    kind: str
    name: str
    version: str | None
    reference: str
    purl: str | None = None
    sha256: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    needs: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the component in CycloneDX's JSON form."""
        plain = {"type": self.kind, "bom-ref": self.reference, **document("name version purl", self)}
        hashes = [{"alg": "SHA-256", "content": self.sha256}] if self.sha256 else None
        facts = [{"name": f"{KIT}:{name}", "value": value} for name, value in sorted(self.facts.items())]
        whole = {**plain, "hashes": hashes, "properties": facts or None}
        return {key: value for key, value in whole.items() if value is not None}


def bill_of_materials(plan: Plan, stack: str, now: datetime) -> dict[str, Any]:
    """Return the SBOM of a stack as CycloneDX document: images and charts with digests and checksums, models with their
    commits, node images, OKE's add-ons, Pulumi providers, and the kit's Python packages.

    The content of images isn't listed, which `compositions` states (`incomplete`). SBOMs of equal content have the same
    serial number.

    Args:
        plan: the stack's plan.
        stack: name of the stack.
        now: the document's timestamp, UTC.
    """
    parts = list({part.reference: part for part in _parts(plan)}.values())
    root = {"type": "application", "bom-ref": f"stack:{stack}", "name": stack, "version": plan.config_hash}
    kit = f"pkg:pypi/{KIT}@{metadata.version(KIT)}"
    needs = [{"ref": part.reference, "dependsOn": list(part.needs)} for part in parts if part.needs]
    packages = {part.reference for part in parts if part.reference.startswith("pkg:pypi/")}
    own = [part.reference for part in parts if part.reference not in packages or part.reference == kit]
    content: dict[str, Any] = {
        "components": [part.document() for part in parts],
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": own}, *needs],
        "compositions": [
            {
                "aggregate": "incomplete",
                "dependencies": [part.reference for part in parts if part.kind in {"container", "operating-system"}],
            }
        ],
    }
    text = json.dumps([root, content], sort_keys=True)
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, text)}",
        "version": 1,
        "metadata": {
            "timestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [{"type": "application", "name": KIT, "version": metadata.version(KIT)}]},
            "component": root,
        },
        **content,
    }


def _parts(plan: Plan) -> Iterator[SbomComponent]:
    yield from _images(plan)
    yield from _charts(plan)
    if plan.layer != "cluster":
        yield from _models(plan)
    if plan.created is not None:
        yield from _of_cluster(plan)
    yield from _plugins()
    yield from _python_packages()


def _images(plan: Plan) -> Iterator[SbomComponent]:
    charts = {chart.reference for name in operators_of(plan) if (chart := operator(name).chart.artifact)}
    for used in images_of(plan):
        if used.image.reference not in charts:
            yield _image(plan, used.image, "container", {"used-by": used.used_by, "path": used.path})


def _image(
    plan: Plan, image: ContainerImage, kind: str, facts: Mapping[str, str], needs: tuple[str, ...] = ()
) -> SbomComponent:
    pulled = {} if plan.registry_mirror is None else {"pulled-from": plan.pulled(image).pinned}
    purl, sha256 = image_purl(image), (image.digest or "").removeprefix("sha256:") or None
    name = f"{image.registry}/{image.repository}"
    return SbomComponent(kind, name, image.tag, purl, purl, sha256, {**facts, **pulled}, needs)


def _charts(plan: Plan) -> Iterator[SbomComponent]:
    """Yield the charts, with their images as subcomponents."""
    for name in operators_of(plan):
        chart = operator(name).chart
        needs = tuple(image_purl(used.image) for used in images_of_operator(name) if used.image != chart.artifact)
        if chart.artifact is not None:
            yield _image(plan, chart.artifact, "application", {"used-by": name}, needs)
        else:
            checksum = f"checksum=sha256:{chart.sha256}&" if chart.sha256 else ""
            source = quote(chart.repository or "", safe="/")
            purl = f"pkg:generic/{chart.reference}@{quote(chart.version, safe='')}?{checksum}repository_url={source}"
            facts = {"repository": chart.repository or ""}
            yield SbomComponent("application", chart.reference, chart.version, purl, purl, chart.sha256, facts, needs)


def image_purl(image: ContainerImage) -> str:
    """Return the package URL of an image or chart in a registry (purl-spec, type `oci`)."""
    name = image.repository.rpartition("/")[2].lower()
    version = f"@{quote(image.digest, safe='')}" if image.digest else ""
    place = quote(f"{image.registry}/{image.repository}".lower(), safe="/")
    return f"pkg:oci/{name}{version}?repository_url={place}&tag={quote(image.tag, safe='')}"


def _models(plan: Plan) -> Iterator[SbomComponent]:
    for model in plan.models:
        weights = model.model
        cache = model_cache_mount(plan, model, "claim")
        commit = weights.revision if cache is None else pinned_revision(weights, cache)
        if re.fullmatch(r"[0-9a-f]{40}", commit or "") is None:
            purl = f"pkg:huggingface/{weights.repository}"
        else:
            purl = f"pkg:huggingface/{weights.repository}@{commit}"
        yield SbomComponent("machine-learning-model", weights.repository, commit, purl, purl)


def _of_cluster(plan: Plan) -> Iterator[SbomComponent]:
    """Yield Kubernetes, the node images and OKE's add-ons of a created cluster."""
    assert plan.created is not None  # noqa: S101 - the caller has checked
    version = plan.created.kubernetes_version
    yield SbomComponent("platform", "Oracle Kubernetes Engine", version, f"oke:{version}")
    for pool in plan.created.pools:
        imported, of = pool.image_import, "GPU nodes" if isinstance(pool, GpuPoolPlan) else "nodes without GPUs"
        if isinstance(pool, GpuPoolPlan) and pool.pool_id is not None:
            continue  # the image of an existing pool isn't known
        if imported is not None:
            sha256 = imported.checksum.removeprefix("sha256:") if imported.checksum.startswith("sha256:") else None
            facts = {"used-by": of, "checksum": imported.checksum}
            yield SbomComponent(
                "operating-system", imported.name, None, f"image:{imported.name}", sha256=sha256, facts=facts
            )
        elif pool.image_id is not None:
            yield SbomComponent(
                "operating-system", pool.image_id, None, f"image:{pool.image_id}", facts={"used-by": of}
            )
        else:
            yield SbomComponent("operating-system", "OKE node image", None, f"image:oke:{of}", facts={"used-by": of})
    for add_on in (*plan.gpu_stack.add_ons, *plan.created.add_ons):
        yield SbomComponent("application", add_on.name, add_on.version, f"oke-add-on:{add_on.name}")


def _plugins() -> Iterator[SbomComponent]:
    for name, package in PLUGINS.items():
        version = plugin_version(package)
        purl = f"pkg:github/pulumi/{name}@v{version}"
        yield SbomComponent("application", f"pulumi-resource-{name.removeprefix('pulumi-')}", version, purl, purl)


def _python_packages() -> Iterator[SbomComponent]:
    """Yield the kit and its transitive requirements that are installed on this machine, those of its
    extras included.
    """
    versions: dict[str, str] = {}
    needs: dict[str, set[str]] = {}
    wanted = [(KIT, frozenset(metadata.metadata(KIT).get_all("Provides-Extra") or ()))]
    visited: set[tuple[str, frozenset[str]]] = set()
    while wanted:
        name, extras = wanted.pop()
        if (name, extras) in visited:
            continue
        visited.add((name, extras))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # required on another platform, or by a missing extra
            continue
        own = distribution.metadata  # read from its file whenever it is asked for
        package = _canonical(own["Name"])
        versions[package] = own["Version"]
        known = needs.setdefault(package, set())
        for need, need_extras in _requirements(distribution, extras):
            if need not in known:
                known.add(need)
                wanted.append((need, need_extras))
    for name, version in sorted(versions.items()):
        references = tuple(_package_purl(need, versions[need]) for need in sorted(needs[name]) if need in versions)
        purl = _package_purl(name, version)
        yield SbomComponent("library", name, version, purl, purl, needs=references)


def _requirements(distribution: metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the names of a package's requirements with the given `extras`, each with the extras that it is required
    with.
    """
    for text in distribution.requires or ():
        requirement, _, marker = text.partition(";")
        of_extra = _EXTRA.search(marker)
        if (match := _REQUIREMENT.match(requirement)) and (of_extra is None or of_extra[1] in extras):
            own = frozenset(part.strip() for part in (match[2] or "").split(",") if part.strip())
            yield _canonical(match[1]), own


def _package_purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _canonical(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
