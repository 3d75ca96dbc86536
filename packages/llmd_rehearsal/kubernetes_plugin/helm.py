"""Helm releases (`kubernetes:helm.sh/v3:Release`), installed by the real Helm from charts on this machine.

Hooks are skipped: they are Jobs whose images have no program in a rehearsal, so that they would do nothing.
"""

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from llmd_base.records import document
from llmd_oke.values import parse_yaml_documents, read_yaml

from llmd_rehearsal.kubernetes_plugin.charts import chart
from llmd_rehearsal.kubernetes_plugin.client import Access
from llmd_rehearsal.kubernetes_plugin.differences import ObjectPropertyChange, differences, without_ignored
from llmd_rehearsal.kubernetes_plugin.sessions import KubernetesSession
from llmd_rehearsal.plugin_values import UNKNOWN, InitFailed, OperationRefusal, Secret, Tree, without_secrets

GRACE_S: Final = 30
"""Seconds that a Helm process may take beyond its `--timeout` before it is killed."""
POLL_S: Final = 0.2
READ_LIMIT_S: Final = 60
"""Time limit in seconds of Helm commands that only read."""


class HelmError(Exception):
    """A Helm process failed; the message is Helm's."""


@dataclass(frozen=True)
class ReleaseMetadata:
    """Metadata of an installed Helm release, from `helm get metadata`."""

    name: str
    chart: str
    version: str
    app_version: str
    namespace: str
    revision: int
    status: str


@dataclass(frozen=True)
class Helm:
    """Runner of Helm with one provider instance's access to the API server. `program` is Helm's path; if empty, Helm is
    taken from PATH.
    """

    access: Access
    cancelled: threading.Event
    program: str = ""

    def install(self, name: str, namespace: str, folder: Path, values: dict[str, Any], flags: Sequence[str]) -> None:
        """Install a Helm release from the chart in `folder`.

        Raises:
            HelmError: the installation failed.
        """
        self._apply("install", name, namespace, folder, values, flags)

    def upgrade(self, name: str, namespace: str, folder: Path, values: dict[str, Any], flags: Sequence[str]) -> None:
        """Upgrade a Helm release to a new revision from the chart in `folder`.

        Raises:
            HelmError: the upgrade failed.
        """
        self._apply("upgrade", name, namespace, folder, values, flags)

    def uninstall(self, name: str, namespace: str, timeout_s: int) -> None:
        """Uninstall a Helm release and wait until its objects are gone; do nothing if the release doesn't exist.

        Raises:
            HelmError: the release couldn't be uninstalled within `timeout_s` seconds.
        """
        flags = ["--wait", "--no-hooks", "--ignore-not-found", f"--timeout={timeout_s}s"]
        self._run(["uninstall", name, "--namespace", namespace, *flags], timeout_s + GRACE_S)

    def metadata(self, name: str, namespace: str) -> ReleaseMetadata | None:
        """Return Helm's metadata of an installed release; None if the release doesn't exist."""
        try:
            text = self._run(["get", "metadata", name, "--namespace", namespace, "--output", "json"], READ_LIMIT_S)
        except HelmError as error:
            if "not found" in str(error):
                return None
            raise
        row = json.loads(text)
        return ReleaseMetadata(
            name=row["name"],
            chart=row["chart"],
            version=row["version"],
            app_version=row.get("appVersion") or "",
            namespace=row["namespace"],
            revision=int(row["revision"]),
            status=row["status"],
        )

    def manifest(self, name: str, namespace: str) -> list[dict[str, Any]]:
        """Return the Kubernetes objects that an installed release contains."""
        text = self._run(["get", "manifest", name, "--namespace", namespace], READ_LIMIT_S)
        return parse_yaml_documents(text)

    def _apply(
        self, verb: str, name: str, namespace: str, folder: Path, values: dict[str, Any], flags: Sequence[str]
    ) -> None:
        timeout_s = next(
            (int(flag[len("--timeout=") : -1]) for flag in flags if flag.startswith("--timeout=")), READ_LIMIT_S
        )
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(values, file)
            file.flush()
            command = [verb, name, str(folder), "--namespace", namespace, "--values", file.name, "--no-hooks"]
            self._run([*command, *flags], timeout_s + GRACE_S)

    def _run(self, arguments: Sequence[str], limit_s: float) -> str:
        program = self.program or shutil.which("helm")
        if not program:
            raise OperationRefusal("helm is not on PATH, and Helm releases are made with it")
        with tempfile.TemporaryDirectory(prefix="helm-") as home:
            kubeconfig = Path(home) / "kubeconfig"
            kubeconfig.write_text(_kubeconfig(self.access))
            environment = {"HOME": home, "KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin:/bin"}
            process = subprocess.Popen(
                [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )
            left_s = limit_s
            while True:
                try:
                    output, errors = process.communicate(timeout=POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    left_s -= POLL_S
                    if self.cancelled.is_set() or left_s <= 0:
                        process.kill()
        if process.returncode:
            raise HelmError(_reason(errors) or f"helm ended after {limit_s:g} s or was cancelled")
        return output


def _reason(errors: str) -> str:
    """Return the last error of Helm's error output, without a prefix such as `Error: UPGRADE FAILED: `."""
    lines = [line for line in errors.strip().splitlines() if line.startswith("Error:")]
    if not lines:
        return errors.strip()
    text = errors[errors.index(lines[-1]) + len("Error: ") :].strip()
    for prefix in ("INSTALLATION FAILED: ", "UPGRADE FAILED: "):
        text = text.removeprefix(prefix)
    return text


def _kubeconfig(access: Access) -> str:
    context = {"cluster": "cluster", "user": "user"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": access.cluster}],
            "users": [{"name": "user", "user": access.user}],
            "contexts": [{"name": "context", "context": context}],
            "current-context": "context",
        }
    )


TOKEN: Final = "kubernetes:helm.sh/v3:Release"  # noqa: S105 - a type token
DEFAULT_TIMEOUT_S: Final = 300

_FALSE_BY_DEFAULT: Final = (
    "allowNullValues",
    "atomic",
    "cleanupOnFail",
    "createNamespace",
    "dependencyUpdate",
    "devel",
    "disableCRDHooks",
    "disableOpenapiValidation",
    "disableWebhooks",
    "forceUpdate",
    "lint",
    "recreatePods",
    "renderSubchartNotes",
    "replace",
    "resetValues",
    "reuseValues",
    "skipAwait",
    "skipCrds",
    "verify",
    "waitForJobs",
)
_EMPTY_BY_DEFAULT: Final = ("description", "keyring", "postrender")
_SUPPORTED: Final = frozenset({"createNamespace", "skipAwait", "skipCrds", "waitForJobs"})
_COMPUTED: Final = ("resourceNames", "status")
_REPLACED_BY: Final = ("name", "namespace")


@dataclass(frozen=True)
class Releases:
    """Operations of the stand-in Kubernetes plug-in on resources of the type `Release`. `program` is Helm's path; if
    empty, Helm is taken from PATH.
    """

    program: str = ""

    def check(self, session: KubernetesSession, news: dict[str, Tree]) -> dict[str, Tree]:
        """Return the inputs of a release that the engine is to record, with all defaults and with the version from the
        chart's `Chart.yaml`.
        """
        inputs = {key: value for key, value in news.items() if key != "compat"}
        defaults: dict[str, Tree] = {**dict.fromkeys(_FALSE_BY_DEFAULT, False), **dict.fromkeys(_EMPTY_BY_DEFAULT, "")}
        checked: dict[str, Tree] = {**defaults, "timeout": DEFAULT_TIMEOUT_S, "namespace": session.namespace, **inputs}
        if not checked.get("name"):
            raise OperationRefusal("a Helm release in this rehearsal needs a name")
        unsupported = sorted(key for key in _FALSE_BY_DEFAULT if checked[key] is True and key not in _SUPPORTED)
        if unsupported:
            raise OperationRefusal(f"Helm releases in this rehearsal don't know {', '.join(unsupported)}")
        options: Any = without_secrets(checked.get("repositoryOpts") or {})
        if UNKNOWN not in (checked.get("chart"), options.get("repo"), checked.get("version")):
            with chart(*_chart_of(checked)) as folder:
                checked["version"] = str(read_yaml(folder / "Chart.yaml")["version"])
        return checked

    def diff(self, state: dict[str, Tree], news: dict[str, Tree], ignored: Sequence[str]) -> list[ObjectPropertyChange]:
        """Return the differences between a release's new inputs and its recorded inputs."""
        old = _plain(state.get("__inputs") or {})
        return without_ignored(differences(old, _plain(news), _REPLACED_BY), ignored)

    def create(
        self, session: KubernetesSession, inputs: dict[str, Tree], *, preview: bool
    ) -> tuple[str, dict[str, Tree]]:
        """Install a Helm release and return its id and state for the engine; in a preview the id is empty."""
        return self._write("install", session, inputs, preview=preview)

    def update(self, session: KubernetesSession, inputs: dict[str, Tree], *, preview: bool) -> dict[str, Tree]:
        """Upgrade a Helm release to a new revision and return the new state for the engine."""
        return self._write("upgrade", session, inputs, preview=preview)[1]

    def _write(
        self, verb: str, session: KubernetesSession, inputs: dict[str, Tree], *, preview: bool
    ) -> tuple[str, dict[str, Tree]]:
        if preview:
            return "", {**inputs, "__inputs": Secret({**inputs}), **dict.fromkeys(_COMPUTED, UNKNOWN)}
        release = _Release.of(session, inputs, self.program)
        try:
            release.apply(verb)
        except HelmError as error:
            raise release.failure(inputs, error) from None
        return release.id, release.state(inputs)

    def read(
        self, session: KubernetesSession, state: dict[str, Tree], inputs: dict[str, Tree]
    ) -> dict[str, Tree] | None:
        """Return the present state of a Helm release for the engine; None if the release no longer exists."""
        if not inputs:
            raise OperationRefusal("Helm releases can't be imported in this rehearsal")
        release = _Release.of(session, inputs, self.program)
        return None if release.metadata() is None else {**state, **release.state(inputs)}

    def delete(self, session: KubernetesSession, state: dict[str, Tree]) -> None:
        """Uninstall a Helm release and wait until its objects are gone."""
        release = _Release.of(session, {**state}, self.program)
        try:
            release.helm.uninstall(release.name, release.namespace, release.timeout_s)
        except HelmError as error:
            raise OperationRefusal(f'Helm release "{release.id}" was not uninstalled: {error}') from None


def _chart_of(inputs: Mapping[str, Tree]) -> tuple[str, str, str]:
    """Return reference, repository and version of the chart from a release's inputs."""
    options: Any = without_secrets(inputs.get("repositoryOpts") or {})
    return str(inputs.get("chart")), str(options.get("repo") or ""), str(inputs.get("version") or "")


@dataclass(frozen=True)
class _Release:
    """Helm release that belongs to one provider instance."""

    helm: Helm
    inputs: dict[str, Any]

    @classmethod
    def of(cls, session: KubernetesSession, inputs: dict[str, Tree], program: str) -> "_Release":
        session.for_write()
        access = session.settings.access()
        assert access is not None  # noqa: S101 - a session with a connection has a server
        return cls(Helm(access, session.cancelled, program), _plain(inputs))

    @property
    def name(self) -> str:
        return str(self.inputs["name"])

    @property
    def namespace(self) -> str:
        return str(self.inputs["namespace"])

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def timeout_s(self) -> int:
        return int(self.inputs.get("timeout") or DEFAULT_TIMEOUT_S)

    def apply(self, verb: str) -> None:
        flags = [f"--timeout={self.timeout_s}s"]
        if not self.inputs.get("skipAwait"):
            flags.append("--wait")
        if self.inputs.get("waitForJobs"):
            flags.append("--wait-for-jobs")
        if self.inputs.get("skipCrds"):
            flags.append("--skip-crds")
        if verb == "install" and self.inputs.get("createNamespace"):
            flags.append("--create-namespace")
        with chart(*_chart_of(self.inputs)) as folder:
            write = self.helm.install if verb == "install" else self.helm.upgrade
            write(self.name, self.namespace, folder, self.inputs.get("values") or {}, flags)

    def metadata(self) -> ReleaseMetadata | None:
        return self.helm.metadata(self.name, self.namespace)

    def state(self, inputs: dict[str, Tree]) -> dict[str, Tree]:
        metadata = self.metadata()
        if metadata is None:
            raise OperationRefusal(f'Helm release "{self.id}" is gone')
        status = document(
            "appVersion chart name namespace revision status version", metadata, appVersion=metadata.app_version
        )
        names = _resource_names(self.helm.manifest(self.name, self.namespace))
        return {**inputs, "__inputs": Secret({**inputs}), "resourceNames": names, "status": status}

    def failure(self, inputs: dict[str, Tree], error: HelmError) -> Exception:
        """Return the error to raise: with the state of a failed release if Helm recorded one, otherwise without any
        state.
        """
        if self.metadata() is None:
            return OperationRefusal(f"Helm release {self.id}: {error}")
        text = (
            f'Helm release "{self.id}" failed to initialize completely. Use Helm CLI to investigate: failed to become '
            f"available within allocated timeout. Error: Helm Release {self.id}: {error}"
        )
        return InitFailed(self.id, self.state(inputs), [text])


def _resource_names(manifest: list[dict[str, Any]]) -> dict[str, Tree]:
    """Return the names of a release's objects by kind, in the format of the real plug-in: `ConfigMap/v1`,
    `Deployment.apps/apps/v1`.
    """
    names: dict[str, list[Tree]] = {}
    for obj in manifest:
        group, _, _ = obj["apiVersion"].rpartition("/")
        kind = f"{obj['kind']}.{group}" if group else obj["kind"]
        names.setdefault(f"{kind}/{obj['apiVersion']}", []).append(obj["metadata"]["name"])
    return {**names}


def _plain(tree: Tree) -> dict[str, Any]:
    return without_secrets(tree)
