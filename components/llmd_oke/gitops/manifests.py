"""Rendered objects as YAML files: what kubectl and Argo CD need to know of their order, how texts are quoted, and the
folder that they are written to, whose other files are never changed or removed.

Readers of Kubernetes' YAML take more plain words for numbers and truth values than PyYAML quotes: `1e3` and `y` among
others (https://github.com/kubernetes-sigs/yaml/blob/master/goyaml.v2/resolve.go). Digests look like such numbers.
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

KUSTOMIZATION = "kustomization.yaml"

RECORD = ".llmd-oke-render.json"
"""Names the files that were written."""

_ARGO_CD = "argocd.argoproj.io"
_FIRST = ("apiVersion", "kind", "metadata")
_READ_BY_OTHERS = frozenset(
    {
        *("Namespace", "CustomResourceDefinition", "PriorityClass", "NetworkPolicy", "ConfigMap"),
        *("PersistentVolume", "PersistentVolumeClaim", "StorageClass"),
        *("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    }
)
"""Kinds that pods of their own wave may need to start; Argo CD orders the kinds of a wave likewise by itself."""

_AMBIGUOUS = re.compile(r"[-+.]?\d.*|[yYnN]")
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\.yaml")
_NO_FILE_NAME = re.compile(r"[^a-z0-9.-]")
_OCI = "oci://"
_POOL = "InferencePool"
_UNFOLDED = 1 << 20
"""Columns of a line: texts are never folded, so that a change of one word is a change of one line."""


def files(rendering: Rendering, *, argo_cd: bool = False) -> dict[str, str]:
    """The files of a rendering by their names, whose order is that of `kubectl apply`.

    `argo_cd` gives each object its sync wave, and makes an Application of each chart; without it a chart is a file of
    values for Helm.

    Raises:
        KitError: two objects have one kind, namespace and name.
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
    """All objects as one stream of documents, in order.

    Raises:
        KitError: there are charts, whose values are no objects.
    """
    if rendering.charts and not argo_cd:
        names = ", ".join(chart.name for chart in rendering.charts)
        raise KitError(
            f"A stream has no place for the values of charts ({names}).", "Write a folder, or add --argo-cd."
        )
    texts = files(rendering, argo_cd=argo_cd)
    return "---\n".join(text for name, text in texts.items() if name != KUSTOMIZATION)


def values_file(chart: ChartRelease) -> str:
    """The file with what Helm is told of a chart."""
    return f"helm-values-{chart.name}.yaml"


def helm_command(chart: ChartRelease, folder: str) -> str:
    """Return the command that installs a chart as the engine does, with its values in `folder`."""
    words = ["helm", "upgrade", "--install", chart.name, chart.chart, "--version", chart.version]
    words += ["--repo", chart.repository] if chart.repository else []
    words += ["--namespace", chart.namespace, "--values", f"{folder}/{values_file(chart)}"]
    return shlex.join([*words, "--wait", "--timeout", f"{chart.timeout_s}s"])


def dump(document: Mapping[str, Any]) -> str:
    """A document as YAML: what says which object it is first, texts of several lines as blocks, and no text that
    another reader takes for a number or a truth value.
    """
    first = {key: document[key] for key in _FIRST if key in document}
    return yaml.dump({**first, **document}, Dumper=_Dumper, sort_keys=False, width=_UNFOLDED, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Dumper that writes each text in the way that fits it, and never refers to an equal part."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's method
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else "'" if _AMBIGUOUS.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _for_argo_cd(item: RenderedObject, *, after_charts: bool) -> dict[str, Any]:
    """The object with its sync wave. Objects are too large for the annotation that a client-side apply makes, and what
    is replaced by something of another name goes last. A sync begins with a dry run of all objects, for which those of
    kinds that a chart of the same sync defines come too early.
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
    """An Application of Argo CD that installs a chart by its version."""
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
    """Changes of a folder, by names of files."""

    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def write_folder(folder: Path, files: Mapping[str, str]) -> FolderChanges:
    """Make a folder hold these files, and none that an earlier call has written and that is no longer among them.

    The record names files before they are there and until they are gone, so that a call that was interrupted is
    continued by the next one.

    Raises:
        KitError: a file of such a name is there that was not written by an earlier call, or the record can't be read.
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
    """The InferencePools that select another version of servers than the files of an earlier run in `folder` say.

    Raises:
        KitError: the record of that run can't be read.
    """
    before = {
        (manifest["metadata"]["namespace"], manifest["metadata"]["name"]): _selector(manifest)
        for name in _recorded(folder)
        if f"-{_POOL.lower()}-" in name and (folder / name).is_file()
        for manifest in [cast("Mapping[str, Any]", yaml.safe_load((folder / name).read_bytes()))]
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
