"""What a rehearsal has at hand: programs, charts and definitions, which decide on the release that it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmd_oke import catalogue
from llmd_oke.catalogue import Release
from llmd_oke.catalogue import releases as catalogue_releases
from llmd_oke.catalogue.monitoring import monitoring
from llmd_oke.catalogue.serving import scaling
from llmd_pods.errors import KitError
from llmd_pods.progress import Progress

from llmd_rehearsal.control_plane import PROGRAMS as CONTROL_PLANE
from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.programs import Program, ensure, is_buildable, locate, module_folder

ENGINE = ("pulumi", "helm")
IN_PODS = ("epp", "pd-sidecar", "envoy")
WATCHING = ("prometheus",)
"""For stacks with monitoring alone."""

IN_TESTS = ("actionlint", "llm-d-inference-sim", "promtool", *WATCHING)
HOST = ("bwrap", "ip", "mount", "nsenter", "unshare")


@dataclass(frozen=True)
class ReleaseChoice:
    """The release that a stack asks for, and the one whose endpoint picker and routing sidecar it is rehearsed with."""

    asked: Release
    used: Release


@dataclass(frozen=True)
class Inventory:
    """Programs by name, all of them there, and the release whose router they make up."""

    release: ReleaseChoice
    programs: Mapping[str, Program]

    def paths(self) -> dict[str, Path]:
        """Where each program is."""
        return {name: program.path for name, program in self.programs.items()}

    def link_engine(self, folder: Path) -> Path:
        """A folder for PATH that has the engine's programs and nothing else."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ENGINE:
            link = folder / name
            link.unlink(missing_ok=True)
            link.symlink_to(self.programs[name].path)
        return folder


def take_inventory(release: Release, progress: Progress, more: Sequence[str] = ()) -> Inventory:
    """Everything that a stack of that release needs, found or built, and these programs beside it.

    Raises:
        KitError: something can't be had; names all of it, each with the command that installs it.
    """
    choice = choose_release(release, _is_obtainable)
    versions = {program.name: program.version for program in _release_programs(choice.used)}
    programs = ensure([*HOST, *ENGINE, *CONTROL_PLANE, *IN_PODS, *more], progress, versions)
    for needed in (release, choice.used):
        fetch_manifests(needed, progress)
    return Inventory(choice, programs)


def fetch_manifests(release: Release, progress: Progress) -> None:
    """Has the CRDs of a release on this machine.

    Raises:
        KitError: they can't be downloaded, or are not what the release names.
    """
    module_folder(release.crds.module, release.crds.version, progress)


def fetch_scaling(progress: Progress) -> None:
    """Has KEDA's definitions on this machine.

    Raises:
        KitError: they can't be downloaded, or are not the pinned ones.
    """
    source = scaling().definitions
    module_folder(source.module, source.version, progress)


def fetch_monitoring(progress: Progress) -> None:
    """Has the Prometheus operator's definitions on this machine.

    Raises:
        KitError: they can't be downloaded, or are not the pinned ones.
    """
    source = monitoring().definitions
    module_folder(source.module, source.version, progress)


def fetch_charts(progress: Progress) -> None:
    """Has the charts on this machine that a created cluster's operators and add-ons are installed from.

    Raises:
        KitError: they can't be downloaded, or are not the pinned ones.
    """
    for module in (module for source in charts.sources() for module in source.modules()):
        module_folder(module.name, module.version, progress)


def _is_obtainable(program: catalogue_releases.Program) -> bool:
    """Whether a release's program is on this machine or can be built on it."""
    return locate(program.name, program.version) is not None or is_buildable(program.name, program.version)


def choose_release(desired: Release, available: Callable[[catalogue_releases.Program], bool]) -> ReleaseChoice:
    """The nearest release all of whose programs are available; between equals the older one.

    Raises:
        KitError: no release has its programs.
    """
    releases = [release for name in catalogue.release_names() if (release := catalogue.release(name))]
    for release in sorted(releases, key=lambda release: (abs(release.order - desired.order), release.order)):
        if all(available(program) for program in _release_programs(release)):
            return ReleaseChoice(desired, release)
    raise KitError("No release's endpoint picker and routing sidecar can be had on this machine.")


def _release_programs(release: Release) -> tuple[catalogue_releases.Program, ...]:
    """The programs of a release that the rehearsal runs for real."""
    return release.endpoint_picker.program, release.routing_sidecar.program
