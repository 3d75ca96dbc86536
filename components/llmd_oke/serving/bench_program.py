"""Programs of this project that run in pods: their modules as ConfigMaps, and parts of manifests that their pods share.

The pods' image provides Python and the dependencies of vLLM (`values/bench/jobs.yaml`).
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
"""Python packages of this project whose modules a program's archive may contain."""

FOLDER = "/opt/llmd-oke"
FILE = "program.pyz"
VOLUME = "program"

_IMPORT = re.compile(
    r"^ *(?:import (?P<module>[\w.]+)|from (?P<package>[\w.]+) import (?P<names>\([^)]*\)|.*))", re.MULTILINE
)
"""An import statement in this project's style: absolute names, one module for each `import`. Each preview searches the
sources for them; parsing the sources instead would take 40 ms."""

CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""Security context of a container by Kubernetes' `restricted` pod security standard, with a read-only root file system.
"""


@cache
def modules(program: str) -> Mapping[str, str]:
    """Return the sources of the modules that a program imports, directly or not, by module name, for example
    `llmd_bench.load.generator`. The `__init__` of a package has an empty source.

    Args:
        program: name of the module to run.
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
    """Return a program's modules as a zip file that Python can run. Its entries are stored without compression: the
    bytes of compressed entries depend on zlib's version, and other bytes would mean another Job.
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
    """Return the `binaryData` of a ConfigMap with a program's archive."""
    return {FILE: base64.b64encode(archive(program)).decode()}


def volume(config_map: str) -> dict[str, Any]:
    """Return the pod's volume with the ConfigMap of a program."""
    return {"name": VOLUME, "configMap": {"name": config_map}}


def command() -> list[str]:
    """Return the command that runs the program in the volume."""
    return ["python3", "-B", f"{FOLDER}/{FILE}"]


def mount() -> dict[str, Any]:
    """Return the volume mount of the program."""
    return {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}


def from_label(name: str, label: str) -> dict[str, Any]:
    """Return an environment variable whose value is that of a label of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def pod_security(how: JobFacts) -> dict[str, Any]:
    """Return the security context of a pod by Kubernetes' `restricted` pod security standard."""
    return {"runAsNonRoot": True, "runAsUser": how.user_id, "seccompProfile": {"type": "RuntimeDefault"}}


def rather_on(shape: str) -> dict[str, Any]:
    """Return a node affinity that prefers nodes of a shape, which have vLLM's image already."""
    term = {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": [shape]}
    preferred = {"weight": 100, "preference": {"matchExpressions": [term]}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}}


def digest(parts: object) -> str:
    """Return the first 10 hexadecimal digits of the SHA-256 of plain data."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:10]


@cache
def files(package: str) -> dict[str, str]:
    """Return the Python files of a package of `llmd_pods` that imports no other module of this project, by
    file name.
    """
    folder = resources.files("llmd_pods") / package
    return {file.name: file.read_text() for file in sorted(folder.iterdir(), key=str) if file.name.endswith(".py")}


def files_name(package: str) -> str:
    """Return the name of the ConfigMap with such a package. The name contains a digest of the files, so that changed
    files restart the pods.
    """
    return f"{package.replace('_', '-')}-{digest(files(package))}"


def files_config_map(package: str, namespace: Any) -> Manifest:
    """Return the ConfigMap from which pods run such a package."""
    metadata = object_metadata(files_name(package), namespace)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files(package)}


def files_volume(package: str, name: str) -> dict[str, Any]:
    """Return a volume named `name` with the ConfigMap of such a package."""
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
    """Yield the names of the modules that a source imports. `from package import name` yields `package`, and
    `package.name` if that is a module of this project.
    """
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
