"""What all tests share: programs from the user's cache or PATH, in one folder that tests look in."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from llmd_oke.cli import console
from llmd_rehearsal.inventory import CONTROL_PLANE, ENGINE, IN_PODS
from llmd_rehearsal.programs import locate

_FOLDER = "LLMD_OKE_PROGRAMS"

# A machine that others use may stall for any time; how long an example takes says nothing.
settings.register_profile("kit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kit")


def pytest_configure(config: pytest.Config) -> None:
    """Links what is there; what isn't makes the tests that need it skip. `scripts/test` builds everything first."""
    if _FOLDER in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="llmd-oke-programs-"))
    config.add_cleanup(lambda: shutil.rmtree(folder))
    for name in (*CONTROL_PLANE, *ENGINE, *IN_PODS):
        if program := locate(name):
            (folder / name).symlink_to(program.path)
    os.environ[_FOLDER] = str(folder)


@pytest.fixture(autouse=True)
def _own_consoles() -> None:
    """Each test sees consoles of its own width: those of a process are kept from the first command on."""
    console.output.cache_clear()
    console.errors.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def no_cloud() -> Iterator[None]:
    """No test may find credentials or a cluster of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("OCI_", "PULUMI_")) or name == "KUBECONFIG"]:
            patch.delenv(name)
        yield
