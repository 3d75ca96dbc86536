"""Which release a stack is rehearsed with: its own where its programs can be had, otherwise the nearest."""

from collections.abc import Callable
from dataclasses import dataclass

from llmd_oke import catalogue
from llmd_oke.catalogue import Release
from llmd_oke.catalogue.releases import Program
from llmd_oke.errors import KitError


@dataclass(frozen=True)
class ReleaseChoice:
    """The release that a stack asks for, and the one whose endpoint picker and routing sidecar it is rehearsed with."""

    asked: Release
    used: Release


def choose_release(asked: Release, available: Callable[[Program], bool]) -> ReleaseChoice:
    """The nearest release all of whose programs are available; between equals the older one.

    Raises:
        KitError: no release has its programs.
    """
    every = [found for name in catalogue.release_names() if (found := catalogue.release(name))]
    for release in sorted(every, key=lambda release: (abs(release.order - asked.order), release.order)):
        if all(available(program) for program in programs(release)):
            return ReleaseChoice(asked, release)
    raise KitError("No release's endpoint picker and routing sidecar can be had on this machine.")


def programs(release: Release) -> tuple[Program, ...]:
    """The programs of a release that the rehearsal runs for real."""
    return release.endpoint_picker.program, release.routing_sidecar.program
