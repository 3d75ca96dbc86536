"""Bill of materials (CycloneDX 1.6) that hatchling puts into each wheel of the kit (`.dist-info/sboms`, PEP 770).

It lists what is locked for the kit and all its extras, and needs the standard library alone, because a build has
nothing else. Equal locks and versions give equal bytes.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KIT = "llmd-oke"
NAME = f"{KIT}.cdx.json"
ALL_EXTRAS, WITHOUT_EXTRAS = "requirements-oci.lock", "components/requirements.txt"
"""Names of the lock files of the kit with all extras, and of the kit alone."""

_PACKAGE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_BY = re.compile(r"^    # (?:via |  )([^\s(\[]+)\S*(?: \((\S+)\))?$")


@dataclass(frozen=True)
class LockedPackage:
    """Package that a lock file names: its name, version, the SHA-256 of each of its files, and the packages that
    require it.
    """

    name: str
    version: str
    hashes: tuple[str, ...]
    required_by: tuple[str, ...]

    @property
    def purl(self) -> str:
        """Package URL (purl) of the locked package."""
        return f"pkg:pypi/{self.name}@{self.version}"


def locked_packages(text: str) -> dict[str, LockedPackage]:
    """Return the packages of a lock file by name, without those that only the build needs."""
    found: dict[str, LockedPackage] = {}
    for block in re.split(r"\n(?=\S)", text):
        match = _PACKAGE.match(block)
        if match is None:
            continue
        by = [line for raw in block.splitlines() if (line := _BY.match(raw)) and line[1] != "-c"]
        names = tuple(line[1] for line in by if not (line[2] or "").endswith(":build"))
        found[match[1]] = LockedPackage(match[1], match[2], tuple(sorted(_HASH.findall(block))), names)
    while built := [name for name, package in found.items() if not {KIT, *found} & {*package.required_by}]:
        for name in built:
            del found[name]
    return found


def wheel_materials(root: Path, version: str, date: datetime | None) -> dict[str, Any]:
    """Return the bill of materials of the kit's wheel as a CycloneDX document.

    Args:
        root: folder with the locks.
        version: version of the kit.
        date: time of the build; left out if None.
    """
    packages = locked_packages((root / ALL_EXTRAS).read_text())
    always = locked_packages((root / WITHOUT_EXTRAS).read_text())
    kit = {"type": "application", "bom-ref": f"pkg:pypi/{KIT}@{version}", "name": KIT, "version": version}
    kit["purl"] = kit["bom-ref"]
    needs: dict[str, list[str]] = {kit["bom-ref"]: [], **{package.purl: [] for package in packages.values()}}
    for package in packages.values():
        for name in {KIT, *packages} & {*package.required_by}:
            needs[kit["bom-ref"] if name == KIT else packages[name].purl].append(package.purl)
    content = {
        "components": [_component(package, package.name in always) for package in packages.values()],
        "dependencies": [{"ref": reference, "dependsOn": sorted(of)} for reference, of in needs.items()],
        "compositions": [{"aggregate": "complete", "dependencies": list(needs)}],
    }
    text = json.dumps([kit, content], sort_keys=True)
    metadata = {"component": kit, **({} if date is None else {"timestamp": date.strftime("%Y-%m-%dT%H:%M:%SZ")})}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, text)}",
        "version": 1,
        "metadata": metadata,
        **content,
    }


def _component(package: LockedPackage, required: bool) -> Mapping[str, object]:
    """Return a package as CycloneDX object, with the hashes of all its published files: a machine installs one."""
    files = {
        "type": "distribution",
        "url": f"https://pypi.org/project/{package.name}/{package.version}/#files",
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
    }
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "scope": "required" if required else "optional",
        "purl": package.purl,
        "externalReferences": [files],
    }


class WheelMaterialsHook(BuildHookInterface[Any]):
    """Build hook of hatchling that puts the bill of materials into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bill of materials beside the wheel, and name the file to hatchling; editable installs have none."""
        if version == "editable":
            return
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        date = None if epoch is None else datetime.fromtimestamp(int(epoch), UTC)
        materials = wheel_materials(Path(self.root), self.metadata.version, date)
        file = Path(self.directory) / NAME
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(materials, indent=2) + "\n")
        build_data["sbom_files"].append(os.path.relpath(file, self.root))
