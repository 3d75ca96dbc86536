"""What the engine keeps of an object: its live state, and beside it the inputs that made it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from llmd_oke.rehearsal.kubernetes_plugin.trees import mark_secrets, rename_keys
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, Tree, without_secrets

INPUTS: Final = "__inputs"
INITIAL_API_VERSION: Final = "__initialApiVersion"
MANAGER: Final = "__fieldManager"

# Keys of definitions' schemas that no language can have as a property's name.
_DASHED: Final = {
    f"x_kubernetes_{name.replace('-', '_')}": f"x-kubernetes-{name}"
    for name in (
        "embedded-resource",
        "int-or-string",
        "list-map-keys",
        "list-type",
        "map-type",
        "preserve-unknown-fields",
        "validations",
    )
}
_UNDERSCORED: Final = {dashed: underscored for underscored, dashed in _DASHED.items()}


def to_object(tree: dict[str, Tree]) -> JsonObject:
    """The Kubernetes object that inputs describe: secrets opened, keys as Kubernetes has them; unknowns stay."""
    return rename_keys(without_secrets(tree), _renamer(_DASHED))


def _to_tree(obj: JsonObject, secrets_of: dict[str, Tree]) -> dict[str, Tree]:
    return mark_secrets(rename_keys(obj, _renamer(_UNDERSCORED)), secrets_of)


def _renamer(names: dict[str, str]) -> Callable[[str], str]:
    return lambda key: names.get(key, key)


@dataclass(frozen=True)
class Checkpoint:
    """The parts of an object's state in the engine."""

    inputs: JsonObject
    live: JsonObject
    initial_api_version: str
    manager: str

    @classmethod
    def parse(cls, state: dict[str, Tree]) -> "Checkpoint":
        """The parts of a recorded state; each is empty where the state hasn't it."""
        live = to_object(state)
        inputs: Any = live.pop(INPUTS, None) or {}
        version: str = live.pop(INITIAL_API_VERSION, None) or inputs.get("apiVersion") or ""
        manager: str = live.pop(MANAGER, None) or ""
        return cls(inputs, live, version, manager)

    def tree(self, secrets_of: dict[str, Tree]) -> dict[str, Tree]:
        """The state to record, with the values secret that are in `secrets_of`."""
        return {
            **_to_tree(self.live, secrets_of),
            INPUTS: _to_tree(self.inputs, secrets_of),
            INITIAL_API_VERSION: self.initial_api_version,
            MANAGER: self.manager,
        }
