"""Programs, charts and definitions that a rehearsal has; they decide on the release that it runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_oke import catalogue
from llmd_oke.catalogue import Release
from llmd_oke.catalogue import releases as catalogue_releases
from llmd_oke.catalogue.releases import CrdFiles

from llmd_rehearsal.control_plane import PROGRAMS as CONTROL_PLANE
from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.programs import LocalProgram, ensure, locate, module_folder, why_unbuildable

ENGINE = ("pulumi", "helm")
IN_PODS = ("epp", "pd-sidecar", "envoy")
BEHIND_GATEWAY = ("envoy-gateway", "inference-pools")
"""Further ones in pods, for stacks with a Gateway."""

WATCHING = ("prometheus",)
"""Programs that only stacks with monitoring or scaling need."""

FOLLOWING = ("keda-operator", "keda-metrics-apiserver")
"""Further ones in pods, for stacks with scaling."""

IN_TESTS = ("actionlint", "llm-d-inference-sim", "promtool", "registry", *BEHIND_GATEWAY, *WATCHING, *FOLLOWING)
HOST = ("bwrap", "ip", "mount", "nsenter", "unshare")


@dataclass(frozen=True)
class ReleaseChoice:
    """The release that a stack asks for, and the one whose endpoint picker and routing sidecar it is rehearsed with.

    `because` says why that is another one.
    """

    asked: Release
    used: Release
    because: str = ""


@dataclass(frozen=True)
class Inventory:
    """Programs by name, and the release whose router they are."""

    release: ReleaseChoice
    programs: Mapping[str, LocalProgram]

    def paths(self) -> dict[str, Path]:
        """Paths of programs by name."""
        return {name: program.path for name, program in self.programs.items()}

    def link_engine(self, folder: Path) -> Path:
        """A folder for PATH that has the engine's programs and nothing else."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ENGINE:
            link = folder / name
            link.unlink(missing_ok=True)
            link.symlink_to(self.programs[name].path)
        return folder


def take_inventory(release: Release, progress: Progress, further: Sequence[str] = ()) -> Inventory:
    """Everything that a stack of that release needs, and `further` programs, found or built.

    Raises:
        KitError: something can't be had; names all of it, each with the command that installs it.
    """
    choice = choose_release(release, _why_missing)
    versions = {program.name: program.version for program in _release_programs(choice.used)}
    programs = ensure([*HOST, *ENGINE, *CONTROL_PLANE, *IN_PODS, *further], progress, versions)
    fetch_definitions((release.crds, choice.used.crds), progress)
    return Inventory(choice, programs)


def fetch_definitions(sources: Iterable[CrdFiles], progress: Progress) -> None:
    """Fetch definitions: a release's, or those that a stack counts on.

    Raises:
        KitError: they can't be downloaded, or are not the pinned ones.
    """
    for source in sources:
        module_folder(source.module, source.version, progress)


def fetch_charts(progress: Progress) -> None:
    """Fetch the charts that a created cluster's operators and add-ons are installed from.

    Raises:
        KitError: they can't be downloaded, or are not the pinned ones.
    """
    for module in (module for source in charts.sources() for module in source.modules()):
        module_folder(module.name, module.version, progress)


def _why_missing(program: catalogue_releases.ImageProgram) -> str | None:
    """Reason why a release's program is neither on this machine nor can be built on it; None where it is or can."""
    if locate(program.name, program.version) is not None:
        return None
    return why_unbuildable(program.name, program.version)


def choose_release(desired: Release, missing: Callable[[catalogue_releases.ImageProgram], str | None]) -> ReleaseChoice:
    """The nearest release that is `missing` none of its programs; between equals the older one.

    Raises:
        KitError: no release has its programs.
    """
    releases = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
    because = ""
    for release in sorted(releases, key=lambda release: (abs(release.order - desired.order), release.order)):
        reasons = list(filter(None, map(missing, _release_programs(release))))
        if not reasons:
            return ReleaseChoice(desired, release, because)
        because = because or reasons[0]
    raise KitError("No release's endpoint picker and routing sidecar can be had on this machine.", because)


def _release_programs(release: Release) -> tuple[catalogue_releases.ImageProgram, ...]:
    """The programs of a release that the rehearsal runs for real."""
    return release.endpoint_picker.program, release.routing_sidecar.program
