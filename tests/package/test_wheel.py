"""The wheel alone, as `pip install` puts it on a machine: with the kit's values, and a project's own beside them."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from llmd_oke import __version__
from packageurl import PackageURL

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
    zipfile.ZipFile(built(ROOT, folder)).extractall(folder)
    return folder


def built(checkout: Path, folder: Path) -> Path:
    """Build the wheel of a checkout into a folder, with the time of a commit."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1764000000"}
    subprocess.run(build, cwd=checkout, env=environment, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(site: Path, *words: str) -> dict[str, Any]:
    """Return what a command of the installed wheel prints as JSON, away from the checkout."""
    command = [sys.executable, "-c", INSTALLED, str(site), str(ROOT), *words, "--json"]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_installed_wheel_checks_stack_files_of_a_checkout_and_of_a_project(site: Path):
    assert installed(site, "check", "--stack", "guide", "--project", str(ROOT))["project_entries"] == []
    checked = installed(site, "check", "--stack", "rehearsal", "--project", str(ROOT / "examples" / "own-model"))
    assert checked["models"][0]["model"] == "acme/support-8b"
    assert checked["project_entries"][0]["file"] == "values/models/support-8b.yaml"


def test_two_checkouts_of_one_commit_give_the_same_wheel(site: Path, tmp_path: Path):
    """Build a checkout in another folder, with other times and rights of its files."""
    other, folders = tmp_path / "other", ("components", "packages", "tools", "values")
    for name in folders:
        shutil.copytree(ROOT / name, other / name, ignore=shutil.ignore_patterns("venv"))
    (other / "dev").mkdir()
    files = ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "requirements-oci.lock", "dev/wheel_materials.py")
    for name in files:
        shutil.copyfile(ROOT / name, other / name)
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(path.stat().st_mode & 0o700)
    (first,) = site.glob("*.whl")
    assert built(other, tmp_path / "built").read_bytes() == first.read_bytes()


@pytest.fixture(scope="module")
def bill(site: Path) -> dict[str, Any]:
    """The wheel's bill of materials, held to its format."""
    (file,) = site.glob("*.dist-info/sboms/*.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read_text()) is None
    return json.loads(file.read_text())


def test_a_wheel_contains_an_sbom_of_its_locked_requirements(bill: dict[str, Any]):
    locks = {
        name: dict(re.findall(r"^(\S+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("components/requirements.txt", "requirements-oci.lock")
    }
    listed = {item["name"]: item for item in bill["components"]}
    assert {name: item["version"] for name, item in listed.items()}.items() <= locks["requirements-oci.lock"].items()
    always = {name for name, item in listed.items() if item["scope"] == "required"}
    assert always == locks["components/requirements.txt"].keys()
    assert {"matplotlib", "oci", "obstore", "pulumi-policy"} <= listed.keys() - always
    assert not {"hatchling", "editables", "pytest"} & listed.keys()
    assert bill["metadata"]["component"]["version"] == __version__
    assert bill["metadata"]["timestamp"] == "2025-11-24T16:00:00Z"
    for item in listed.values():
        assert PackageURL.from_string(item["purl"]).name == item["name"]
        assert item["externalReferences"][0]["hashes"]


def test_every_package_in_the_wheels_sbom_is_a_dependency_of_the_kit(bill: dict[str, Any]):
    needs = {edge["ref"]: edge["dependsOn"] for edge in bill["dependencies"]}
    reached, asked = set(), [bill["metadata"]["component"]["bom-ref"]]
    while asked:
        reference = asked.pop()
        if reference not in reached:
            reached.add(reference)
            asked += needs[reference]
    assert reached == needs.keys()
    assert len(reached) == len(bill["components"]) + 1
