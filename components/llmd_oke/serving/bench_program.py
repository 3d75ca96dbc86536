"""Programs of our own in pods: their modules in a ConfigMap, and what pods of the bench have in common.

The image brings Python and what vLLM itself depends on (`values/bench/jobs.yaml`).
"""

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from llmd_oke.catalogue.benchmarks import JobFacts
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.objects import Manifest
from llmd_oke.serving.manifests import object_metadata

PACKAGES = ("llmd_base", "llmd_bench", "llmd_pods")
"""Packages of our own, whose modules go into a program's file."""

FOLDER = "/opt/llmd-oke"
FILE = "program.pyz"
VOLUME = "program"

_IMPORT = re.compile(
    r"^ *(?:import (?P<module>[\w.]+)|from (?P<package>[\w.]+) import (?P<names>\([^)]*\)|.*))", re.MULTILINE
)
"""A statement that imports, as this kit's style has it: absolute names, one module to an `import`. Every preview looks
for them; parsing the sources would take it 40 ms."""

CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""What Kubernetes' `restricted` pod security standard asks of a container, and a root that nothing is written to."""


@cache
def modules(program: str) -> Mapping[str, str]:
    """The sources that a program needs by module name, `llmd_bench.load.generator` for example. Packages come empty.

    Args:
        program: the module that is run.
    """
    sources: dict[str, str] = {}
    pending = [program]
    while pending:
        name = pending.pop()
        if name in sources:
            continue
        file = _file(name)
        sources[name] = "" if file.name == "__init__.py" else file.read_text(encoding="utf-8")
        own = (imported for imported in _imports(sources[name]) if imported.partition(".")[0] in PACKAGES)
        pending += [*own, *([name.rpartition(".")[0]] if "." in name else [])]
    return dict(sorted(sources.items()))


@cache
def archive(program: str) -> bytes:
    """The modules as one file that Python runs. Stored, not compressed: other versions of zlib would make other bytes,
    and so another Job.
    """
    sources = {
        f"{name.replace('.', '/')}{'/__init__' if _is_package(name) else ''}.py": source
        for name, source in modules(program).items()
    }
    sources["__main__.py"] = f"import sys\n\nfrom {program} import main\n\nsys.exit(main())\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for path, source in sorted(sources.items()):
            file.writestr(zipfile.ZipInfo(path), source)
    return buffer.getvalue()


def binary_data(program: str) -> dict[str, str]:
    """A program as the binary data of a ConfigMap."""
    return {FILE: base64.b64encode(archive(program)).decode()}


def volume(config_map: str) -> dict[str, Any]:
    """The volume with a program and what lies beside it in its ConfigMap."""
    return {"name": VOLUME, "configMap": {"name": config_map}}


def command() -> list[str]:
    """The command that runs the program of the volume."""
    return ["python3", "-B", f"{FOLDER}/{FILE}"]


def mount() -> dict[str, Any]:
    """Return the mount of the program's volume."""
    return {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}


def from_label(name: str, label: str) -> dict[str, Any]:
    """An environment variable with the value of a label of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def pod_security(how: JobFacts) -> dict[str, Any]:
    """Return what Kubernetes' `restricted` pod security standard asks of a pod."""
    return {"runAsNonRoot": True, "runAsUser": how.user_id, "seccompProfile": {"type": "RuntimeDefault"}}


def rather_on(shape: str) -> dict[str, Any]:
    """Nodes of the shape if there is room: they have vLLM's image, which others would have to pull."""
    term = {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": [shape]}
    preferred = {"weight": 100, "preference": {"matchExpressions": [term]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def digest(parts: object) -> str:
    """A short name of any plain data."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:10]


@cache
def files(package: str) -> dict[str, str]:
    """The files of a program that is a package of `llmd_pods` and needs no other module, by name."""
    folder = resources.files("llmd_pods") / package
    return {file.name: file.read_text() for file in sorted(folder.iterdir(), key=str) if file.name.endswith(".py")}


def files_name(package: str) -> str:
    """The name of such a program's ConfigMap. It says the content, so that another program restarts what runs it."""
    return f"{package.replace('_', '-')}-{digest(files(package))}"


def files_config_map(package: str, namespace: Any) -> Manifest:
    """The ConfigMap that pods run such a program from."""
    metadata = object_metadata(files_name(package), namespace)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files(package)}


def files_volume(package: str, name: str) -> dict[str, Any]:
    """The volume of that name with such a program."""
    return {"name": name, "configMap": {"name": files_name(package)}}


def _file(name: str) -> Traversable:
    parent, _, last = name.rpartition(".")
    return _folder(name) / "__init__.py" if _is_package(name) else _folder(parent) / f"{last}.py"


@cache
def _is_package(name: str) -> bool:
    return _folder(name).is_dir()


def _folder(package: str) -> Traversable:
    top, *below = package.split(".")
    return resources.files(top).joinpath(*below)


def _imports(source: str) -> Iterator[str]:
    """Modules that a source imports; of `from package import name` the module `package.name`, if that is one."""
    for match in _IMPORT.finditer(source):
        if match["module"]:
            yield match["module"]
            continue
        yield match["package"]
        names = (f"{match['package']}.{name}" for name in re.findall(r"[\w.]+", match["names"]))
        yield from filter(_is_module, names)


@cache
def _is_module(name: str) -> bool:
    if name.partition(".")[0] not in PACKAGES:
        return False
    return _is_package(name) or (_is_package(name.rpartition(".")[0]) and _file(name).is_file())
