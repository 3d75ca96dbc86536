"""Rendered objects as YAML files: their order for kubectl and Argo CD, the quoting of strings, and the directory that
they are written to, whose other files are never changed or removed.

Kubernetes' YAML parser reads more plain scalars as numbers and booleans than PyYAML quotes, such as `1e3` and `y`
(https://github.com/kubernetes-sigs/yaml/blob/master/goyaml.v2/resolve.go). Digests may look like such numbers.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from llmd_base.errors import KitError

from llmd_oke.config.yaml_files import write_whole
from llmd_oke.gitops.rendering import ChartRelease, RenderedObject, Rendering
from llmd_oke.values import parse_yaml

KUSTOMIZATION = "kustomization.yaml"

RECORD = ".llmd-oke-render.json"
"""Name of the JSON file that lists, in the directory of a rendering, the files that were written there."""

_ARGO_CD = "argocd.argoproj.io"
_FIRST = ("apiVersion", "kind", "metadata")
_READ_BY_OTHERS = frozenset(
    {
        *("Namespace", "CustomResourceDefinition", "PriorityClass", "NetworkPolicy", "ConfigMap"),
        *("PersistentVolume", "PersistentVolumeClaim", "StorageClass"),
        *("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    }
)
"""Kinds that pods of the same wave may need to start, and whose files therefore come first in a wave; Argo CD orders
the kinds of a wave alike."""

_AMBIGUOUS = re.compile(r"[-+.]?\d.*|[yYnN]")
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\.yaml")
_NO_FILE_NAME = re.compile(r"[^a-z0-9.-]")
_OCI = "oci://"
_POOL = "InferencePool"
_UNFOLDED = 1 << 20
"""Line width at which no string is folded, so that a changed word changes one line only."""


def files(rendering: Rendering, *, argo_cd: bool = False) -> dict[str, str]:
    """Return the YAML text of each file of a rendering, by the file's name. The names sort in the order of `kubectl
    apply`.

    With `argo_cd`, each object has its sync wave, and each chart is an Application; otherwise each chart is a values
    file for Helm.

    Raises:
        KitError: two objects have the same kind, namespace and name.
    """
    result: dict[str, str] = {}
    last = max((part.wave for part in (*rendering.objects, *rendering.charts)), default=0)
    digits = max(2, len(str(last)))
    for item in rendering.objects:
        step = "a" if item.kind in _READ_BY_OTHERS else "b"
        parts = (f"{item.wave:0{digits}d}{step}", item.kind, item.namespace, item.name)
        name = f"{_NO_FILE_NAME.sub('_', '-'.join(part for part in parts if part).lower())}.yaml"
        if name in result:
            raise KitError(f"There are two objects {item.kind} {item.name}.", "Give the models other names.")
        later = any(chart.wave < item.wave for chart in rendering.charts)
        result[name] = dump(_for_argo_cd(item, after_charts=later) if argo_cd else item.manifest)
    for chart in rendering.charts:
        if argo_cd:
            result[f"{chart.wave:0{digits}d}b-application-{chart.name}.yaml"] = dump(_application(chart))
    resources = sorted(result)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "sortOptions": {"order": "fifo"},
        "resources": resources,
    }
    values = {values_file(chart): dump(chart.values) for chart in rendering.charts if not argo_cd}
    return {KUSTOMIZATION: dump(kustomization), **values, **{name: result[name] for name in resources}}


def stream(rendering: Rendering, *, argo_cd: bool = False) -> str:
    """Return all objects as one YAML stream, in the order of `kubectl apply`.

    Raises:
        KitError: the rendering has charts and `argo_cd` is false: values files aren't objects.
    """
    if rendering.charts and not argo_cd:
        names = ", ".join(chart.name for chart in rendering.charts)
        raise KitError(
            f"A stream has no place for the values of charts ({names}).", "Write a folder, or add --argo-cd."
        )
    texts = files(rendering, argo_cd=argo_cd)
    return "---\n".join(text for name, text in texts.items() if name != KUSTOMIZATION)


def values_file(chart: ChartRelease) -> str:
    """Return the name of a chart's values file."""
    return f"helm-values-{chart.name}.yaml"


def helm_command(chart: ChartRelease, folder: str) -> str:
    """Return the Helm command that installs a chart with its values file in `folder`, as an update
    of the stack does.
    """
    words = ["helm", "upgrade", "--install", chart.name, chart.chart, "--version", chart.version]
    words += ["--repo", chart.repository] if chart.repository else []
    words += ["--namespace", chart.namespace, "--values", f"{folder}/{values_file(chart)}"]
    return shlex.join([*words, "--wait", "--timeout", f"{chart.timeout_s}s"])


def dump(document: Mapping[str, Any]) -> str:
    """Return a document as YAML: `apiVersion`, `kind` and `metadata` first, multi-line strings as block scalars, and
    strings quoted that other parsers would read as numbers or booleans.
    """
    first = {key: document[key] for key in _FIRST if key in document}
    return yaml.dump({**first, **document}, Dumper=_Dumper, sort_keys=False, width=_UNFOLDED, allow_unicode=True)


_LibYaml: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_LibYaml):
    """YAML dumper that chooses the style of each string, and writes no anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's method
        return True


def _text(dumper: Any, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _AMBIGUOUS.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _for_argo_cd(item: RenderedObject, *, after_charts: bool) -> dict[str, Any]:
    """Return the object with Argo CD's annotations for its sync wave and sync options.

    `ServerSideApply`, because some objects are too large for the annotation of client-side apply; `PruneLast`, so that
    replaced objects are deleted after their successors are there; `SkipDryRunOnMissingResource`, because a sync begins
    with a dry run of all objects, before a chart of the same sync has created its custom resource definitions.
    """
    options = ["ServerSideApply=true", "PruneLast=true", *(["Prune=false"] if item.outlives else [])]
    group = item.manifest["apiVersion"].rpartition("/")[0]
    if after_charts and "." in group and not group.endswith(".k8s.io"):
        options.append("SkipDryRunOnMissingResource=true")
    own = {f"{_ARGO_CD}/sync-wave": str(item.wave), f"{_ARGO_CD}/sync-options": ",".join(options)}
    metadata = item.manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), **own}
    return {**item.manifest, "metadata": {**metadata, "annotations": annotations}}


def _application(chart: ChartRelease) -> dict[str, Any]:
    """Return the Argo CD Application that installs a chart of a given version."""
    repository, name = chart.repository, chart.chart
    if repository is None:
        repository, _, name = chart.chart.removeprefix(_OCI).partition("@")[0].rpartition("/")
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {
            "name": chart.name,
            "namespace": "argocd",
            "annotations": {f"{_ARGO_CD}/sync-wave": str(chart.wave)},
        },
        "spec": {
            "project": "default",
            "destination": {"server": "https://kubernetes.default.svc", "namespace": chart.namespace},
            "source": {
                "repoURL": repository,
                "chart": name,
                "targetRevision": chart.version,
                "helm": {"releaseName": chart.name, "valuesObject": chart.values},
            },
            "syncPolicy": {"automated": {}, "syncOptions": ["ServerSideApply=true"]},
        },
    }


@dataclass(frozen=True)
class FolderChanges:
    """Names of the files in a directory that a rendering has written, left unchanged and removed."""

    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def write_folder(folder: Path, files: Mapping[str, str]) -> FolderChanges:
    """Write rendered files to a directory, and remove files of earlier calls that aren't in `files`; return what
    changed.

    The record lists a file before it is written and until it is removed, so that the next call completes an
    interrupted one.

    Raises:
        KitError: the directory has a file of the same name that no earlier call wrote, or the record isn't valid.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = _recorded(folder)
    if foreign := sorted(name for name in files if name not in before and (folder / name).exists()):
        remedy = "Render into an empty folder, or remove them."
        raise KitError(f"{folder} has files that `llmd-oke render` did not write: {', '.join(foreign)}.", remedy)
    _record(folder, before | files.keys())
    changed = [name for name, text in files.items() if not _is(folder / name, text)]
    for name in changed:
        write_whole(folder / name, files[name])
    removed = sorted(before - files.keys())
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    _record(folder, files.keys())
    unchanged = files.keys() - set(changed)
    return FolderChanges(tuple(sorted(changed)), tuple(sorted(unchanged)), tuple(removed))


def changed_pools(folder: Path, rendering: Rendering) -> tuple[str, ...]:
    """Return the names of the InferencePools whose selector differs from that in the files of an earlier rendering in
    `folder`, so that they will select servers of another version.

    Raises:
        KitError: the record of the earlier rendering isn't valid.
    """
    before = {
        (manifest["metadata"]["namespace"], manifest["metadata"]["name"]): _selector(manifest)
        for name in _recorded(folder)
        if f"-{_POOL.lower()}-" in name and (folder / name).is_file()
        for manifest in [cast("Mapping[str, Any]", parse_yaml((folder / name).read_bytes()))]
    }
    pools = [item for item in rendering.objects if item.kind == _POOL]
    return tuple(
        sorted(
            item.name
            for item in pools
            if (known := before.get((item.namespace, item.name))) is not None and known != _selector(item.manifest)
        )
    )


def _selector(pool: Mapping[str, Any]) -> Mapping[str, str]:
    return pool["spec"]["selector"]["matchLabels"]


def _recorded(folder: Path) -> set[str]:
    path = folder / RECORD
    if not path.exists():
        return set()
    try:
        value: Any = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError):
        value = None
    names = cast("dict[str, Any]", value).get("files") if isinstance(value, dict) else None
    if not isinstance(names, list) or not all(
        isinstance(name, str) and _FILE_NAME.fullmatch(name) for name in cast("list[Any]", names)
    ):
        raise KitError(f"{path} doesn't name the files that were written.", "Render into an empty folder.")
    return set(cast("list[str]", names))


def _record(folder: Path, names: Iterable[str]) -> None:
    text = json.dumps({"files": sorted(names)}, indent=1)
    if not _is(folder / RECORD, text):
        write_whole(folder / RECORD, text)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == text.encode()
