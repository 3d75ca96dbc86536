"""The provider's own configuration."""

from dataclasses import dataclass, field
from typing import Any, Final

from llmd_oke.rehearsal.kubernetes_plugin.kubeconfig import Access, find_access, from_environment, load
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN, Tree, without_secrets

_WHICH_CLUSTER: Final = ("kubeconfig", "context", "cluster")
_IDENTIFIER: Final = "clusterIdentifier"


@dataclass(frozen=True)
class Settings:
    """Options of one provider instance. `kubeconfig` is a path or a text."""

    kubeconfig: str
    context: str = ""
    cluster: str = ""
    namespace: str = ""
    flags: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def parse(cls, arguments: dict[str, Tree]) -> "Settings":
        """The options of a Configure call; booleans arrive as texts. Refusal for what no rehearsal can do."""
        plain: dict[str, Any] = without_secrets({**arguments})
        flags = frozenset(key for key, value in plain.items() if str(value).lower() == "true")
        if str(plain.get("enableServerSideApply", "true")).lower() == "false":
            raise Refusal("the stand-in Kubernetes plug-in knows server-side apply only: enableServerSideApply=false")
        if plain.get("renderYamlToDirectory"):
            raise Refusal("the stand-in Kubernetes plug-in doesn't render YAML: renderYamlToDirectory")
        return cls(
            kubeconfig=plain.get("kubeconfig") or from_environment(),
            context=plain.get("context") or "",
            cluster=plain.get("cluster") or "",
            namespace=plain.get("namespace") or "",
            flags=flags,
        )

    def access(self) -> Access | None:
        """Which API server, and as whom; None where the kubeconfig names none. Refusal for a text that is none."""
        return find_access(load(self.kubeconfig), self.context, self.cluster)


@dataclass(frozen=True)
class SettingsChange:
    """What an edit of the provider's options does."""

    changed: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()


def compare(olds: dict[str, Tree], news: dict[str, Tree]) -> SettingsChange:
    """What changed, and whether it means another cluster: then everything on it has to be made again.

    The same `clusterIdentifier` on both sides says that it is the same cluster, whatever else changed.
    """
    before, after = without_secrets({**olds}), without_secrets({**news})
    changed = tuple(sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)))
    if not changed:
        return SettingsChange()
    old_identifier, identifier = before.get(_IDENTIFIER), after.get(_IDENTIFIER)
    replaces: tuple[str, ...] = ()
    if old_identifier and identifier and old_identifier != identifier:
        replaces = (_IDENTIFIER,)
    unknown = next((key for key in _WHICH_CLUSTER if after.get(key) is UNKNOWN), None)
    if unknown:
        changed, replaces = (unknown,), (*replaces, unknown)
    elif _other_cluster(before, after):
        replaces += tuple(key for key in _WHICH_CLUSTER if key in changed)
    return SettingsChange(changed, () if identifier and identifier == old_identifier else replaces)


def _other_cluster(before: dict[str, Any], after: dict[str, Any]) -> bool:
    old, new = _active_cluster(before), _active_cluster(after)
    return old is not None and new is not None and old != new


def _active_cluster(options: dict[str, Any]) -> dict[str, Any] | None:
    if not options.get("kubeconfig"):
        return None
    config = load(options["kubeconfig"])
    found = find_access(config, options.get("context") or "", options.get("cluster") or "")
    return found.cluster if found else None
