"""The wheel alone, as `pip install` puts it on a machine: with the kit's values, and a project's own beside them."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

INSTALLED = """
import sys
from pathlib import Path
site, checkout = Path(sys.argv[1]), Path(sys.argv[2])
own = {checkout / "components", checkout / "packages", checkout}
sys.path = [str(site), *(path for path in sys.path if Path(path or ".").resolve() not in own)]
import llmd_oke
assert Path(llmd_oke.__file__).is_relative_to(site), llmd_oke.__file__
sys.argv = ["llmd-oke", *sys.argv[3:]]
from llmd_oke.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel of this checkout is installed in."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def installed(site: Path, *words: str) -> dict[str, Any]:
    """Return what a command of the installed wheel prints as JSON, away from the checkout."""
    command = [sys.executable, "-c", INSTALLED, str(site), str(ROOT), *words, "--json"]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_installed_wheel_reads_the_catalogue_entries_of_a_project(site: Path):
    checked = installed(site, "check", "--stack", "rehearsal", "--project", str(ROOT / "examples" / "own-model"))
    assert checked["models"][0]["model"] == "acme/support-8b"
    assert checked["project_entries"][0]["file"] == "values/models/support-8b.yaml"


def test_an_installed_wheel_checks_the_stack_files_of_a_checkout(site: Path):
    assert installed(site, "check", "--stack", "guide", "--project", str(ROOT))["project_entries"] == []
