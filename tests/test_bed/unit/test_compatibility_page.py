"""The table of compatibility in the docs is what `values/`, the locks and `tools/` say."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from llmd_oke import catalogue
from llmd_oke.catalogue.operators import gpu_stacks, operator, policy_engine
from llmd_oke.catalogue.releases import Release
from llmd_oke.catalogue.serving import gateway_provider, gateway_provider_names, leader_worker_sets, scaling
from llmd_rehearsal.inventory import deployed_versions
from llmd_rehearsal.program_definitions import program_definition

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "compatibility.md"
OPERATORS = {
    "cert-manager": "cert-manager",
    "node-feature-discovery": "Node Feature Discovery",
    "amd-gpu-operator": "AMD GPU operator",
    "kube-prometheus-stack": "kube-prometheus-stack",
}
PLUG_INS = ("pulumi", "pulumi-kubernetes", "pulumi-oci", "pulumi-policy")
NOT_RUN = "no: declared, and held to its definitions"


def test_the_compatibility_page_equals_what_is_generated_from_the_catalogue():
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes it anew."""
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


def page() -> str:
    """The page of the docs."""
    known = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
    releases = sorted(known, key=lambda release: -release.order)
    return "\n".join(
        [
            "# Compatibility",
            "",
            "Which versions belong together: what a stack deploys, and what rehearsals and tests run of it. Made from",
            "`values/`, the locks and `tools/vllm`; a test holds the page to them. **None of it was run on OCI or on",
            "GPUs yet**: [first run on OCI](how-to/first-run-on-oci.md).",
            "",
            "## Of a release",
            "",
            *table(
                ("release", "part", "deployed", "rehearsed and tested"),
                (row for each in releases for row in of_release(each)),
            ),
            "",
            "What a release deploys otherwise, and its known limits: [releases](releases.md).",
            "",
            "## Of all stacks",
            "",
            *table(("part", "version", "rehearsed and tested"), of_all_stacks()),
            "",
        ]
    )


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def of_release(release: Release) -> Iterator[tuple[str, ...]]:
    deployed = {
        program: versions[release.name] for program, versions in deployed_versions().items() if release.name in versions
    }
    vllm = release.vllm.image.tag
    itself = sorted(folder.name for folder in (ROOT / "tools" / "vllm").iterdir() if folder.is_dir())
    on_processors = f"simulated; {vllm} itself on a processor" if vllm.removeprefix("v") in itself else "simulated"
    yield (
        f"**{release.name}**{' (default)' if release.default else ''}",
        "vLLM",
        f"`{release.vllm.image.reference}`",
        on_processors,
    )
    for program, name in {"epp": "endpoint picker", "pd-sidecar": "routing sidecar", "envoy": "Envoy"}.items():
        yield "", name, deployed[program], rehearsed(program, deployed[program])
    yield "", "Gateway API Inference Extension", release.crds.version, f"{release.crds.version}, in the real API server"


def rehearsed(program: str, version: str) -> str:
    """Return what is run of a program, where a stack deploys this version of it."""
    definition = program_definition(program)
    if definition.satisfies(definition.version, version):
        return definition.version
    if version in definition.source.images:
        other = f", else {definition.version}" if version in definition.source.other_builds else ""
        return f"{version}, out of the deployed image{other}"
    return f"{definition.version}: {definition.differs[version]}"


def of_all_stacks() -> Iterator[tuple[str, ...]]:
    pulumi = program_definition("pulumi").version
    yield "Pulumi CLI", f"{pulumi} or later", pulumi
    for package in PLUG_INS:
        instead = {"pulumi-kubernetes": "; rehearsals have a stand-in where Pulumi's plug-in can't be had",
                   "pulumi-oci": "; rehearsals have a stand-in, held to recordings of the real one"}  # fmt: skip
        yield f"Python package `{package}`", locked(package), f"{locked(package)}{instead.get(package, '')}"
    kubernetes = program_definition("kube-apiserver")
    yield (
        "Kubernetes",
        "the stack file's (`kubernetesVersion`), or the cluster's",
        f"{kubernetes.version}, whose API server, scheduler and controllers run",
    )
    for name, title in OPERATORS.items():
        found = operator(name)
        least = f"; needs Kubernetes 1.{found.oldest_minor}" if found.oldest_minor else ""
        yield f"{title} (chart)", f"{found.chart.version}{least}", charts_run(name)
    yield "KEDA", scaling().definitions.version, rehearsed("keda-operator", scaling().definitions.version)
    groups = leader_worker_sets().definitions.version
    yield "LeaderWorkerSet", groups, rehearsed("lws-manager", groups)
    yield "Calico", policy_engine().version, NOT_RUN
    for stack in (*gpu_stacks().gpu_stacks.values(), *gpu_stacks().rdma.values()):
        for add_on in stack.add_ons:
            if add_on.version:
                yield f"{add_on.name} (OKE add-on)", add_on.version, "no: a stand-in makes the devices that it would"
    for name in gateway_provider_names():
        provider = gateway_provider(name)
        if provider:
            own = program_definition("envoy-gateway").version if name == "envoy-gateway" else ""
            yield f"Gateway of {name}", "whoever installed it has it", own or NOT_RUN


def charts_run(name: str) -> str:
    if name == "node-feature-discovery":
        return rehearsed("nfd-master", f"v{operator(name).chart.version}")
    if name == "kube-prometheus-stack":
        prometheus = program_definition("prometheus").version
        return f"Prometheus {prometheus} (its Go module), with the stack's monitors and rules"
    return "the chart's objects, in the real API server; its programs don't run"


def locked(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert found, package
    return found[1]
