"""What a rehearsal has at hand: the release that it can run, and where each of its programs is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llmd_oke.catalogue import Release
from llmd_oke.catalogue import releases as catalogue_releases
from llmd_oke.catalogue.scaling import scaling
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.control_plane.plane import PROGRAMS as CONTROL_PLANE
from llmd_oke.rehearsal.kubernetes_plugin import charts
from llmd_oke.rehearsal.programs import Program, ensure, locate, module_folder, obtainable
from llmd_oke.rehearsal.release_choice import ReleaseChoice, choose_release, programs

ENGINE = ("pulumi", "helm")
IN_PODS = ("epp", "pd-sidecar", "envoy")
IN_TESTS = ("actionlint", "llm-d-inference-sim")
HOST = ("bwrap", "ip", "mount", "nsenter", "unshare")


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


def take_inventory(asked: Release, progress: Progress) -> Inventory:
    """Everything that a stack of that release needs, found or built.

    Raises:
        KitError: something can't be had; names all of it, each with the command that installs it.
    """
    choice = choose_release(asked, obtainable_program)
    wanted = {program.name: program.version for program in programs(choice.used)}
    found = ensure([*HOST, *ENGINE, *CONTROL_PLANE, *IN_PODS], progress, wanted)
    for release in (asked, choice.used):
        fetch_manifests(release, progress)
    return Inventory(choice, found)


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


def fetch_charts(progress: Progress) -> None:
    """Has the charts on this machine that a created cluster's operators and add-ons are installed from.

    Raises:
        KitError: they can't be downloaded, or are not the pinned ones.
    """
    for module in (module for source in charts.sources() for module in source.modules()):
        module_folder(module.name, module.version, progress)


def obtainable_program(program: catalogue_releases.Program) -> bool:
    """Whether a release's program is on this machine or can be built on it."""
    return locate(program.name, program.version) is not None or obtainable(program.name, program.version)
