"""The versions in which stacks deploy what a rehearsal runs, and where the two differ.

A program's version stands once: in the release, container image, chart or definition that a stack deploys. What a
rehearsal runs is held to it by `values/rehearsal/programs.yaml`, where a difference has its reason.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from llmd_oke import catalogue
from llmd_oke.catalogue.operators import operator
from llmd_oke.catalogue.releases import Release
from llmd_oke.catalogue.serving import scaling
from llmd_oke.planning import Plan
from llmd_oke.planning.monitoring import OPERATOR as MONITORING

from llmd_rehearsal.inventory import FOLLOWING, IN_PODS, WATCHING, ReleaseChoice
from llmd_rehearsal.programs import LocalProgram, program_definition

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_PROMETHEUS_IMAGE = ("prometheus", "prometheusSpec", "image")


@dataclass(frozen=True)
class VersionDifference:
    """A program that a rehearsal runs in another version than a stack; `deployed` is None where no stack deploys it."""

    program: str
    rehearsed: str
    deployed: str | None
    because: str

    def __str__(self) -> str:
        instead = "" if self.deployed is None else f" in place of {self.deployed}"
        return f"{self.program} {self.rehearsed}{instead}: {self.because}"


def deployed_versions() -> dict[str, dict[str, str]]:
    """Versions that stacks deploy, by program and by the kit's record that has them."""
    releases = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
    followed = {"KEDA": scaling().definitions.version}
    watched = {"Prometheus": _prometheus()}
    return {
        **{name: {release.name: _release_version(name, release) for release in releases} for name in IN_PODS},
        **dict.fromkeys(WATCHING, watched),
        "promtool": watched,
        **dict.fromkeys(FOLLOWING, followed),
    }


def version_differences(
    plan: Plan, choice: ReleaseChoice, programs: Mapping[str, LocalProgram]
) -> tuple[VersionDifference, ...]:
    """Programs that a rehearsal runs in another version than the stack would, with the reasons.

    `choice` has the stack's own release with its overrides.
    """
    return tuple(_differences(plan, choice, programs.values()))


def _differences(plan: Plan, choice: ReleaseChoice, programs: Iterable[LocalProgram]) -> Iterator[VersionDifference]:
    versions = {name: _release_version(name, choice.asked) for name in IN_PODS}
    if plan.monitoring is not None and plan.monitoring.install:
        versions |= dict.fromkeys(WATCHING, _prometheus())
    versions |= dict.fromkeys(FOLLOWING, scaling().definitions.version)
    stands_in = f"{choice.used.name} stands in for {choice.asked.name}" if choice.used.name != choice.asked.name else ""
    reasons = dict.fromkeys(
        (choice.asked.endpoint_picker.program.name, choice.asked.routing_sidecar.program.name), stands_in
    )
    if plan.override.proxy_image is not None:
        reasons["envoy"] = "`override.proxyImage` of the stack file"
    for program in programs:
        definition, deployed = program_definition(program.name), versions.get(program.name)
        if definition.not_deployed is not None:
            yield VersionDifference(program.name, program.version, None, definition.not_deployed)
        elif deployed not in {None, program.version}:
            because = definition.differs.get(deployed or "") or reasons.get(program.name) or f"from {program.origin}"
            yield VersionDifference(program.name, program.version, deployed, because)


def _release_version(program: str, release: Release) -> str:
    if program == "envoy":
        return _version(release.proxy.image.tag)
    part = release.endpoint_picker if program == release.endpoint_picker.program.name else release.routing_sidecar
    return part.program.version


def _prometheus() -> str:
    """Prometheus 3.12.0 is version 0.312.0 of its Go module (prometheus/prometheus, RELEASE.md)."""
    tag = next(place.image.tag for place in operator(MONITORING).images if place.at == _PROMETHEUS_IMAGE)
    match = _VERSION.search(tag)
    return tag if match is None else f"v0.{match[1]}{match[2]:0>2}.{match[3]}"


def _version(tag: str) -> str:
    """The version that a tag such as `distroless-v1.40.0` tells; the tag where it tells none."""
    match = _VERSION.search(tag)
    return f"v{match[0].removeprefix('v')}" if match else tag
