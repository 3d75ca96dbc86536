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
from importlib import resources as package_files
from importlib.resources.abc import Traversable
from typing import Unpack, cast

import pulumi

from llmd_oke.catalogue.benchmarks import Resources
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.kubernetes_types import (
    Affinity,
    Container,
    EnvVar,
    NodeSelectorTerm,
    PodSpec,
    ResourceRequirements,
    SecurityContext,
    Toleration,
    Volume,
    VolumeMount,
)
from llmd_oke.objects import NON_ROOT_USER_ID, RESTRICTED_CONTAINER, Manifest, field_value, pod_security
from llmd_oke.serving.manifests import from_field, object_metadata

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


def volume(config_map: pulumi.Input[str]) -> Volume:
    """Return the pod's volume with the ConfigMap of a program."""
    return {"name": VOLUME, "configMap": {"name": field_value(config_map)}}


def command() -> list[str]:
    """Return the container command that runs the program in the ConfigMap's volume."""
    return ["python3", "-B", f"{FOLDER}/{FILE}"]


def mount() -> VolumeMount:
    """Return the mount of `volume` in the container whose command is `command`."""
    return {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}


def from_label(name: str, label: str) -> EnvVar:
    """Return an environment variable named `name` whose value is that of the pod's label `label`."""
    return from_field(name, f"metadata.labels['{label}']")


def identity() -> list[EnvVar]:
    """Return the environment variables with the Job's name and UID, which a pod needs to publish ConfigMaps that the
    Job owns.
    """
    return [
        from_label("JOB_NAME", "batch.kubernetes.io/job-name"),
        from_label("JOB_UID", "batch.kubernetes.io/controller-uid"),
    ]


def root_with(capability: str) -> SecurityContext:
    """Return the security context of a container that runs as root with one capability alone, such as `CHOWN`."""
    return {**RESTRICTED_CONTAINER, "capabilities": {"drop": ["ALL"], "add": [capability]}, "runAsUser": 0}


def container(**fields: Unpack[Container]) -> Container:
    """Return a container by Kubernetes' `restricted` pod security standard, whose status has the end of its log if it
    fails without a message.
    """
    return {
        "imagePullPolicy": "IfNotPresent",
        "securityContext": RESTRICTED_CONTAINER,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **fields,
    }


def waiting_pod(name: str, words: list[str], tolerated: list[Toleration]) -> PodSpec:
    """Return the pod of a Job that waits for something in the cluster, with access to the API server.

    Args:
        name: name of its ServiceAccount, and of the ConfigMap with its program `wait.py`.
        words: arguments of the program.
        tolerated: tolerations of the pod.
    """
    waits = container(
        name="wait",
        image=job_images().python.pinned,
        command=["python", "-B", f"{FOLDER}/wait.py"],
        args=words,
        resources={"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        volumeMounts=[mount()],
    )
    return {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
        "securityContext": pod_security(NON_ROOT_USER_ID),
        "tolerations": tolerated,
        "containers": [waits],
        "volumes": [volume(name)],
    }


def resources(amounts: Resources) -> ResourceRequirements:
    """Return a container's requests and limits."""
    return cast("ResourceRequirements", amounts.model_dump(exclude_none=True))


def rather_on(shape: str) -> Affinity:
    """Return a node affinity that prefers nodes of a shape, which have vLLM's image already."""
    nodes: NodeSelectorTerm = {"matchExpressions": [{"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": [shape]}]}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": nodes}]}}


def digest(parts: object) -> str:
    """Return the first 10 hexadecimal digits of the SHA-256 of plain data."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:10]


@cache
def files(package: str) -> dict[str, str]:
    """Return the Python files of a package of `llmd_pods` that imports no other module of this project, by
    file name.
    """
    folder = package_files.files("llmd_pods") / package
    return {file.name: file.read_text() for file in sorted(folder.iterdir(), key=str) if file.name.endswith(".py")}


def files_name(package: str) -> str:
    """Return the name of the ConfigMap with the files of a package of `llmd_pods`. The name contains a digest of the
    files, so that changed files restart the pods.
    """
    return f"{package.replace('_', '-')}-{digest(files(package))}"


def files_config_map(package: str, namespace: pulumi.Input[str]) -> Manifest:
    """Return the ConfigMap with the files of a package of `llmd_pods`, from which pods run it."""
    metadata = object_metadata(files_name(package), namespace)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files(package)}


def files_volume(package: str, name: str) -> Volume:
    """Return a volume with the name `name` whose content is the ConfigMap of a package of `llmd_pods`."""
    return {"name": name, "configMap": {"name": files_name(package)}}


def _file(name: str) -> Traversable:
    parent, _, last = name.rpartition(".")
    return _folder(name) / "__init__.py" if _is_package(name) else _folder(parent) / f"{last}.py"


@cache
def _is_package(name: str) -> bool:
    return _folder(name).is_dir()


def _folder(package: str) -> Traversable:
    top, *below = package.split(".")
    return package_files.files(top).joinpath(*below)


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
