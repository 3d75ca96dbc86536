"""Helm releases (`kubernetes:helm.sh/v3:Release`): the real Helm with charts that are on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmd_oke.rehearsal.kubernetes_plugin import charts
from llmd_oke.rehearsal.kubernetes_plugin.differences import Difference, differences, without_ignored
from llmd_oke.rehearsal.kubernetes_plugin.helm import Helm, HelmFailed, Metadata
from llmd_oke.rehearsal.kubernetes_plugin.sessions import Session
from llmd_oke.rehearsal.plugin_protocol.errors import InitFailed, Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN, Secret, Tree, without_secrets

TOKEN: Final = "kubernetes:helm.sh/v3:Release"  # noqa: S105 - a type token
DEFAULT_TIMEOUT_S: Final = 300

_OFF: Final = (
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
_EMPTY: Final = ("description", "keyring", "postrender")
_HEEDED: Final = frozenset({"createNamespace", "skipAwait", "skipCrds", "waitForJobs"})
_ANSWERED: Final = ("resourceNames", "status")
_REPLACED_BY: Final = ("name", "namespace")


@dataclass(frozen=True)
class Releases:
    """What the plug-in does for Helm releases. `program` is Helm's path; from PATH if empty."""

    program: str = ""

    def check(self, session: Session, news: dict[str, Tree]) -> dict[str, Tree]:
        """The inputs to record: all defaults filled in, and the version that the chart says it has."""
        given = {key: value for key, value in news.items() if key != "compat"}
        defaults: dict[str, Tree] = {**dict.fromkeys(_OFF, False), **dict.fromkeys(_EMPTY, "")}
        checked: dict[str, Tree] = {**defaults, "timeout": DEFAULT_TIMEOUT_S, "namespace": session.namespace, **given}
        if not checked.get("name"):
            raise Refusal("a Helm release in this rehearsal needs a name")
        unheeded = sorted(key for key in _OFF if checked[key] is True and key not in _HEEDED)
        if unheeded:
            raise Refusal(f"Helm releases in this rehearsal don't know {', '.join(unheeded)}")
        where = _Where.parse(checked)
        if where is not None:
            checked["version"] = charts.chart_version(where.reference, where.repository, where.version)
        return checked

    def diff(self, state: dict[str, Tree], news: dict[str, Tree], ignored: Sequence[str]) -> list[Difference]:
        """How inputs differ from those recorded."""
        old = _plain(state.get("__inputs") or {})
        return without_ignored(differences(old, _plain(news), _REPLACED_BY), ignored)

    def create(self, session: Session, inputs: dict[str, Tree], *, preview: bool) -> tuple[str, dict[str, Tree]]:
        """Id and state of a release that is made; at preview the id is empty."""
        if preview:
            return "", _foreseen(inputs)
        release = _Release.of(session, inputs, self.program)
        try:
            release.apply("install")
        except HelmFailed as error:
            raise release.failure(inputs, error) from None
        return release.id, release.state(inputs)

    def update(self, session: Session, inputs: dict[str, Tree], *, preview: bool) -> dict[str, Tree]:
        """State of a release after another revision."""
        if preview:
            return _foreseen(inputs)
        release = _Release.of(session, inputs, self.program)
        try:
            release.apply("upgrade")
        except HelmFailed as error:
            raise release.failure(inputs, error) from None
        return release.state(inputs)

    def read(self, session: Session, state: dict[str, Tree], inputs: dict[str, Tree]) -> dict[str, Tree] | None:
        """The state now, or None where the release is gone."""
        if not inputs:
            raise Refusal("Helm releases can't be imported in this rehearsal")
        release = _Release.of(session, inputs, self.program)
        return None if release.metadata() is None else {**state, **release.state(inputs)}

    def delete(self, session: Session, state: dict[str, Tree]) -> None:
        """Deletes a release and waits until it is gone."""
        release = _Release.of(session, {**state}, self.program)
        try:
            release.helm.uninstall(release.name, release.namespace, release.timeout_s)
        except HelmFailed as error:
            raise Refusal(f'Helm release "{release.id}" was not uninstalled: {error}') from None


@dataclass(frozen=True)
class _Where:
    """What a program calls a chart."""

    reference: str
    repository: str
    version: str

    @classmethod
    def parse(cls, inputs: dict[str, Tree]) -> "_Where | None":
        """None as long as some of it isn't known."""
        options: Any = without_secrets(inputs.get("repositoryOpts") or {})
        parts = (inputs.get("chart"), options.get("repo") or "", inputs.get("version") or "")
        if any(part is UNKNOWN for part in parts):
            return None
        return cls(*(str(part) for part in parts))


@dataclass(frozen=True)
class _Release:
    """One release of one provider instance."""

    helm: Helm
    inputs: dict[str, Any]

    @classmethod
    def of(cls, session: Session, inputs: dict[str, Tree], program: str) -> "_Release":
        session.to_write()
        access = session.settings.access()
        assert access is not None  # noqa: S101 - a session that can write has one
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
        where = _Where.parse({**self.inputs})
        assert where is not None  # noqa: S101 - known by now
        with charts.chart(where.reference, where.repository, where.version) as folder:
            write = self.helm.install if verb == "install" else self.helm.upgrade
            write(self.name, self.namespace, folder, self.inputs.get("values") or {}, self._flags(verb))

    def metadata(self) -> Metadata | None:
        return self.helm.metadata(self.name, self.namespace)

    def state(self, inputs: dict[str, Tree]) -> dict[str, Tree]:
        found = self.metadata()
        if found is None:
            raise Refusal(f'Helm release "{self.id}" is gone')
        status: dict[str, Tree] = {
            "appVersion": found.app_version,
            "chart": found.chart,
            "name": found.name,
            "namespace": found.namespace,
            "revision": found.revision,
            "status": found.status,
            "version": found.version,
        }
        names = _resource_names(self.helm.manifest(self.name, self.namespace))
        return {**inputs, "__inputs": Secret({**inputs}), "resourceNames": names, "status": status}

    def failure(self, inputs: dict[str, Tree], error: HelmFailed) -> Exception:
        """A release that Helm recorded is kept as a failed one; otherwise there is nothing to record."""
        if self.metadata() is None:
            return Refusal(f"Helm release {self.id}: {error}")
        text = (
            f'Helm release "{self.id}" failed to initialize completely. Use Helm CLI to investigate: failed to become '
            f"available within allocated timeout. Error: Helm Release {self.id}: {error}"
        )
        return InitFailed(self.id, self.state(inputs), [text])

    def _flags(self, verb: str) -> list[str]:
        flags = [f"--timeout={self.timeout_s}s"]
        if not self.inputs.get("skipAwait"):
            flags.append("--wait")
        if self.inputs.get("waitForJobs"):
            flags.append("--wait-for-jobs")
        if self.inputs.get("skipCrds"):
            flags.append("--skip-crds")
        if verb == "install" and self.inputs.get("createNamespace"):
            flags.append("--create-namespace")
        return flags


def _foreseen(inputs: dict[str, Tree]) -> dict[str, Tree]:
    """The state of a preview."""
    return {**inputs, "__inputs": Secret({**inputs}), **dict.fromkeys(_ANSWERED, UNKNOWN)}


def _resource_names(manifest: list[dict[str, Any]]) -> dict[str, Tree]:
    """Names by kind, as the real plug-in writes kinds: `ConfigMap/v1`, `Deployment.apps/apps/v1`."""
    names: dict[str, list[Tree]] = {}
    for obj in manifest:
        group, _, _ = obj["apiVersion"].rpartition("/")
        kind = f"{obj['kind']}.{group}" if group else obj["kind"]
        names.setdefault(f"{kind}/{obj['apiVersion']}", []).append(obj["metadata"]["name"])
    return {**names}


def _plain(tree: Tree) -> dict[str, Any]:
    return without_secrets(tree)
