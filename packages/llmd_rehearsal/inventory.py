"""Inventory of a rehearsal's programs, charts and definitions, and the choice of the release that is rehearsed with
them.

A program's version is set in one place: the release, container image, chart or definition that a stack deploys.
`values/rehearsal/programs.yaml` has the reason of each version that a rehearsal runs instead.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke import catalogue
from llmd_oke.catalogue.operators import operator
from llmd_oke.catalogue.releases import CrdFiles, ImageProgram, Release
from llmd_oke.catalogue.serving import leader_worker_sets, scaling
from llmd_oke.planning import Plan
from llmd_oke.planning.monitoring import OPERATOR as MONITORING

from llmd_rehearsal.control_plane import PROGRAMS as CONTROL_PLANE
from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.program_definitions import program_definition
from llmd_rehearsal.programs import LocalProgram, ensure, locate, module_folder, why_unavailable

ENGINE = ("pulumi",)
LANGUAGES = {
    "python": "pulumi-language-python",
    "nodejs": "pulumi-language-nodejs",
    "yaml": "pulumi-language-yaml",
}
"""Language plug-ins by the runtime in Pulumi.yaml. Rehearsals need none for Python; the engine starts policy packs with
it.
"""

CHARTS = ("helm",)
"""Programs that a rehearsal needs only for stacks with Helm charts: charts of operators, of monitoring, or of a created
cluster's add-ons.
"""

DISCOVERING = ("nfd-gc", "nfd-master", "nfd-worker")
"""Additional programs that run in pods of stacks with Helm charts (Node Feature Discovery)."""

IN_PODS = ("epp", "pd-sidecar", "envoy")
BEHIND_GATEWAY = ("envoy-gateway", "inference-pools")
"""Additional programs that run in pods of stacks with a Gateway."""

WATCHING = ("prometheus",)
"""Programs that a rehearsal needs only for stacks with monitoring, or whose servers are scaled by load."""

FOLLOWING = ("keda-operator", "keda-metrics-apiserver")
"""Additional programs that run in pods of stacks whose servers are scaled by load."""

GROUPING = ("lws-manager",)
"""Additional programs that run in pods of stacks with servers that span nodes."""

IN_TESTS = (
    *("actionlint", "llm-d-inference-sim", "promtool", "registry"),
    *(*BEHIND_GATEWAY, *WATCHING, *FOLLOWING, *DISCOVERING),
)
HOST = ("bwrap", "ip", "mount", "nsenter", "unshare")
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_PROMETHEUS_IMAGE = ("prometheus", "prometheusSpec", "image")


@dataclass(frozen=True)
class ReleaseChoice:
    """The llm-d release that a stack names (`asked`) and the release whose endpoint picker and routing sidecar are
    rehearsed (`used`). `because` is the reason if the two differ.
    """

    asked: Release
    used: Release
    because: str = ""


@dataclass(frozen=True)
class VersionDifference:
    """Program that a rehearsal runs in another version than the stack deploys; `deployed` is None if no stack deploys
    the program.
    """

    program: str
    rehearsed: str
    deployed: str | None
    because: str

    def __str__(self) -> str:
        instead = "" if self.deployed is None else f" in place of {self.deployed}"
        return f"{self.program} {self.rehearsed}{instead}: {self.because}"


@dataclass(frozen=True)
class Inventory:
    """Programs of a rehearsal by name, and the choice of the llm-d release whose endpoint picker and routing sidecar
    are run.
    """

    release: ReleaseChoice
    programs: Mapping[str, LocalProgram]

    def paths(self) -> dict[str, Path]:
        """Return the paths of the rehearsal's programs by name."""
        return {name: program.path for name, program in self.programs.items()}

    def link_engine(self, folder: Path) -> Path:
        """Return a folder, for the engine's PATH, with links to the programs that it starts (`pulumi`, `helm`) and
        nothing else.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*ENGINE, *CHARTS):
            link = folder / name
            link.unlink(missing_ok=True)
            if name in self.programs:
                link.symlink_to(self.programs[name].path)
        return folder

    def install_languages(self, pulumi_home: Path) -> None:
        """Link Pulumi's language plug-ins into the plug-in folder of a Pulumi home, as the engine takes none from
        PATH.
        """
        for runtime, name in LANGUAGES.items():
            if program := self.programs.get(name):
                folder = pulumi_home / "plugins" / f"language-{runtime}-{program.version}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).unlink(missing_ok=True)
                (folder / name).symlink_to(program.path)

    def version_differences(self, plan: Plan) -> Iterator[VersionDifference]:
        """Yield the programs of the rehearsal whose versions differ from those that the stack deploys, with the
        reasons.
        """
        asked, used = self.release.asked, self.release.used
        versions = {name: _release_version(name, asked) for name in IN_PODS}
        if plan.monitoring is not None and plan.monitoring.install:
            versions |= dict.fromkeys(WATCHING, _prometheus())
        versions |= dict.fromkeys(FOLLOWING, scaling().definitions.version) | dict.fromkeys(DISCOVERING, _discovery())
        versions |= dict.fromkeys(GROUPING, leader_worker_sets().definitions.version)
        stands_in = f"{used.name} stands in for {asked.name}" if used.name != asked.name else ""
        reasons = {program.name: stands_in for program in _release_programs(asked)}
        if plan.override.proxy_image is not None:
            reasons["envoy"] = "`override.proxyImage` of the stack file"
        for program in self.programs.values():
            definition, deployed = program_definition(program.name), versions.get(program.name)
            if definition.not_deployed is not None:
                yield VersionDifference(program.name, program.version, None, definition.not_deployed)
            elif deployed not in {None, program.version}:
                because = (
                    definition.differs.get(deployed or "") or reasons.get(program.name) or f"from {program.origin}"
                )
                yield VersionDifference(program.name, program.version, deployed, because)


def deployed_versions() -> dict[str, dict[str, str]]:
    """Return the versions of programs that stacks deploy: by program, then by the name of the release, chart or
    definition that sets the version.
    """
    return {
        **{name: {release.name: _release_version(name, release) for release in _releases()} for name in IN_PODS},
        **{name: {"Prometheus": _prometheus()} for name in (*WATCHING, "promtool")},
        **{name: {"KEDA": scaling().definitions.version} for name in FOLLOWING},
        **{name: {"LeaderWorkerSet": leader_worker_sets().definitions.version} for name in GROUPING},
        **{name: {"Node Feature Discovery": _discovery()} for name in DISCOVERING},
    }


def _release_version(program: str, release: Release) -> str:
    if program == "envoy":  # its tags are such as `distroless-v1.40.0`
        tag = release.proxy.image.tag
        match = _VERSION.search(tag)
        return f"v{match[0].removeprefix('v')}" if match else tag
    return next(item.version for item in _release_programs(release) if item.name == program)


def _prometheus() -> str:
    """Return the version of Prometheus' Go module: 0.312.0 for Prometheus 3.12.0 (prometheus/prometheus,
    RELEASE.md).
    """
    tag = next(place.image.tag for place in operator(MONITORING).images if place.at == _PROMETHEUS_IMAGE)
    match = _VERSION.search(tag)
    return tag if match is None else f"v0.{match[1]}{match[2]:0>2}.{match[3]}"


def _discovery() -> str:
    return f"v{operator('node-feature-discovery').chart.version}"


def take_inventory(release: Release, progress: Progress, further: Sequence[str] = ()) -> Inventory:
    """Find or build the programs and definitions that a rehearsed stack of this llm-d release needs, and the `further`
    programs.

    Raises:
        KitError: programs are missing; the message names all of them, each with the command that installs it.
    """

    def why_missing(program: ImageProgram) -> str | None:
        return None if locate(program.name, program.version) else why_unavailable(program.name, program.version)

    choice = choose_release(release, why_missing)
    versions = {program.name: program.version for program in _release_programs(choice.used)}
    programs = ensure([*HOST, *ENGINE, *CONTROL_PLANE, *IN_PODS, *further], progress, versions)
    fetch_definitions((release.crds, choice.used.crds), progress)
    return Inventory(choice, programs)


def language_programs(project: Path, runtime: str) -> tuple[str, ...]:
    """Return the names of the programs that Pulumi needs to run a project written for this language runtime; none for
    Python.

    Raises:
        KitError: rehearsals can't run programs of this runtime, its plug-in can't be had, or packages aren't installed.
    """
    if runtime == "python":
        return ()
    if runtime not in LANGUAGES:
        raise KitError(
            f"{project / 'Pulumi.yaml'} has the runtime {runtime!r}.", f"Rehearsals run {', '.join(LANGUAGES)}."
        )
    name = LANGUAGES[runtime]
    if locate(name) is None and (reason := why_unavailable(name, program_definition(name).version)):
        raise KitError(f"{name} can't be had: {reason}.", f"Put {name} of Pulumi's CLI on PATH.")
    if runtime == "nodejs" and not (project / "node_modules").is_dir():
        raise KitError(f"{project} has no node_modules.", f"Install its packages: cd {project} && pulumi install")
    return (name,)


def fetch_definitions(sources: Iterable[CrdFiles], progress: Progress) -> None:
    """Download the Go modules that contain these CustomResourceDefinitions.

    Raises:
        KitError: a download failed, or its checksum isn't the pinned one.
    """
    for source in sources:
        module_folder(source.module, source.version, progress)


def fetch_charts(progress: Progress) -> None:
    """Download the Helm charts of a created cluster's operators and add-ons.

    Raises:
        KitError: a download failed, or its checksum isn't the pinned one.
    """
    for module in (module for source in charts.sources() for module in source.modules()):
        module_folder(module.name, module.version, progress)


def choose_release(desired: Release, missing: Callable[[ImageProgram], str | None]) -> ReleaseChoice:
    """Return the llm-d release nearest to `desired` whose programs are all available on this machine; of two equally
    near ones the older. `missing` returns the reason why a program isn't available, or None if it is.

    Raises:
        KitError: no release has all its programs available.
    """
    because = ""
    for release in sorted(_releases(), key=lambda release: (abs(release.order - desired.order), release.order)):
        # One reason is enough: to ask a registry that can't be reached takes up to 5 s, in each run.
        reason = next(filter(None, map(missing, _release_programs(release))), None)
        if reason is None:
            return ReleaseChoice(desired, release, because)
        because = because or reason
    raise KitError("No release's endpoint picker and routing sidecar can be had on this machine.", because)


def _releases() -> list[Release]:
    return [release for name in catalogue.release_names() if (release := catalogue.release(name))]


def _release_programs(release: Release) -> tuple[ImageProgram, ...]:
    """Return the programs of a release that the rehearsal runs for real: endpoint picker and routing sidecar."""
    return release.endpoint_picker.program, release.routing_sidecar.program
