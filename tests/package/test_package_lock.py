"""Lock of the component package: the kit's own requirements, in the versions that it is tested with."""

import re
import tomllib
from pathlib import Path

from llmd_oke.values import read_yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def locked(name: str) -> dict[str, str]:
    return dict(VERSION.findall((ROOT / name).read_text()))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[;]", text)[0].replace(".", "-") for text in requirements}


def test_the_component_package_is_installed_by_pip_into_its_own_environment():
    plugin = read_yaml(ROOT / "components" / "PulumiPlugin.yaml")
    assert plugin["runtime"] == {"name": "python", "options": {"toolchain": "pip", "virtualenv": "venv"}}
    assert not (ROOT / "components" / "pyproject.toml").exists()  # Pulumi would install that, too


def test_requirements_of_the_component_package_have_the_kits_versions_and_hashes():
    own = locked("components/requirements.txt")
    assert own.items() <= locked("requirements.lock").items()
    blocks = re.split(r"\n(?=\S)", (ROOT / "components" / "requirements.txt").read_text().strip())
    assert len(blocks) == len(own)
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_the_component_package_locks_no_extras_and_no_development_packages():
    own = locked("components/requirements.txt").keys()
    assert names(PROJECT["project"]["dependencies"]) <= own
    extras = names([text for extra in PROJECT["project"]["optional-dependencies"].values() for text in extra])
    groups = names([text for group in PROJECT["dependency-groups"].values() for text in group])
    assert not (extras | groups) & own
