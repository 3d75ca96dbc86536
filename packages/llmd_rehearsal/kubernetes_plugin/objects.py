"""Kubernetes objects as the plug-in handles them: kinds, names, annotations, secret values, and the state that the
engine records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from llmd_oke.values import read_yaml, values_folder

from llmd_rehearsal.plugin_values import (
    UNKNOWN,
    JsonObject,
    OperationRefusal,
    Secret,
    Tree,
    dig,
    dig_list,
    dig_map,
    has_secrets,
    is_list,
    is_map,
    without_secrets,
)

AUTONAMED: Final = "pulumi.com/autonamed"
DELETION_PROPAGATION: Final = "pulumi.com/deletionPropagationPolicy"
FIELD_MANAGER: Final = "pulumi.com/patchFieldManager"
PATCH_FORCE: Final = "pulumi.com/patchForce"
REPLACE_UNREADY: Final = "pulumi.com/replaceUnready"
SKIP_AWAIT: Final = "pulumi.com/skipAwait"
TIMEOUT_SECONDS: Final = "pulumi.com/timeoutSeconds"
WAIT_FOR: Final = "pulumi.com/waitFor"
READ_ONLY_METADATA: Final = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
)
INPUTS: Final = "__inputs"
INITIAL_API_VERSION: Final = "__initialApiVersion"
MANAGER: Final = "__fieldManager"
# Keys of CustomResourceDefinitions' schemas that aren't valid property names in programming languages.
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


@dataclass(frozen=True)
class ObjectKind:
    """Kind of Kubernetes objects, with the changes that require an object's replacement.

    `replaced_by` are dotted paths of such fields, with `[*]` for any list element. `plural` is empty for custom
    resources, whose plural the API server must be asked for. Changes of the fields in `mutable` require a replacement
    too, unless the provider's option named in `mutable_by` is set.
    """

    api_version: str
    kind: str
    plural: str = ""
    namespaced: bool = True
    replaced_by: tuple[str, ...] = ()
    mutable: tuple[str, ...] = ()
    mutable_by: str = ""

    @property
    def id(self) -> str:
        """Key of the kind in the table `WAITS` of readiness conditions, for example `apps/v1/Deployment`."""
        return f"{self.api_version}/{self.kind}"

    @property
    def built_in(self) -> bool:
        """Tell whether the kind is one of Kubernetes' own, in contrast to a custom resource."""
        return bool(self.plural)


def kind_of(token: str) -> ObjectKind:
    """Return the kind of a Pulumi type token such as `kubernetes:apps/v1:Deployment`.

    Raises:
        OperationRefusal: the kind is built in and isn't in `kinds.yaml`.
    """
    _, group_version, name = token.split(":", 2)
    api_version = group_version.removeprefix("core/")
    kinds_by_name, groups = _table()
    kind = kinds_by_name.get((api_version, name))
    if kind is not None:
        return kind
    group = api_version.rpartition("/")[0]
    if group in groups:
        kinds = ", ".join(sorted(name for _, name in kinds_by_name))
        served = f"{kinds}, Helm's Release and custom resources"
        raise OperationRefusal(f"{token} is not in this rehearsal; its stand-in Kubernetes plug-in serves {served}")
    return ObjectKind(api_version, name)


def kind_of_object(obj: JsonObject) -> ObjectKind:
    """Return the kind that an object's `apiVersion` and `kind` name, whether or not `kinds.yaml` has it."""
    api_version, name = obj.get("apiVersion") or "", obj.get("kind") or ""
    return _table()[0].get((api_version, name)) or ObjectKind(api_version, name)


@cache
def _table() -> tuple[Mapping[tuple[str, str], ObjectKind], frozenset[str]]:
    data = read_yaml(values_folder() / "rehearsal" / "kubernetes_plugin" / "kinds.yaml")
    kinds = map(_kind, data["kinds"])
    return {(kind.api_version, kind.kind): kind for kind in kinds}, frozenset(data["builtInGroups"])


def _kind(row: dict[str, Any]) -> ObjectKind:
    containers = [
        f"spec.{containers}[*].{field}"
        for containers in ("containers", "initContainers")
        for field in row.get("containerReplacedBy", ())
    ]
    return ObjectKind(
        api_version=row["apiVersion"],
        kind=row["kind"],
        plural=row["plural"],
        namespaced=row.get("namespaced", True),
        replaced_by=(*row.get("replacedBy", ()), *containers),
        mutable=tuple(row.get("mutable", ())),
        mutable_by=row.get("mutableBy", ""),
    )


def name_of(obj: JsonObject) -> str:
    """Return the object's name; empty if the object has none or the name is unknown in a preview."""
    name = dig(obj, "metadata", "name")
    return name if isinstance(name, str) else ""


def namespace_of(obj: JsonObject) -> str:
    """Return the object's namespace; empty if the object has none."""
    namespace = dig(obj, "metadata", "namespace")
    return namespace if isinstance(namespace, str) else ""


def is_named(obj: JsonObject) -> bool:
    """Tell whether the program sets the object's name, even to a value that is unknown in a preview."""
    return dig(obj, "metadata", "name") is UNKNOWN or bool(name_of(obj))


def uid_of(obj: JsonObject) -> str:
    """Return the object's uid; empty if the object has none."""
    return dig(obj, "metadata", "uid") or ""


def annotation(obj: JsonObject, name: str) -> str:
    """Return the value of an object's annotation; empty if the object doesn't have it."""
    value = dig(obj, "metadata", "annotations", name)
    return value if isinstance(value, str) else ""


def is_annotated_true(obj: JsonObject, name: str) -> bool:
    """Tell whether an annotation's value is `true`, in any case."""
    return annotation(obj, name).lower() == "true"


def id_of(obj: JsonObject) -> str:
    """Return the id of an object that the engine records: `namespace/name`, or `name` for objects without a
    namespace.
    """
    namespace = namespace_of(obj)
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)


def split_id(id_: str) -> tuple[str, str]:
    """Return namespace (empty if there is none) and name from an object's id."""
    namespace, _, name = id_.rpartition("/")
    return namespace, name


def with_metadata(obj: JsonObject, **fields: object) -> JsonObject:
    """Return a copy of the object with metadata fields set; None removes a field.

    Unknown metadata stay unknown: in a preview, the engine passes unknown values for what depends on a replaced
    resource.
    """
    if obj.get("metadata") is UNKNOWN:
        return obj
    metadata = {**dig_map(obj, "metadata"), **fields}
    return {**obj, "metadata": {key: value for key, value in metadata.items() if value is not None}}


def without_read_only_metadata(obj: JsonObject) -> JsonObject:
    """Return a copy of the object without the metadata fields that only a server sets."""
    if not isinstance(obj.get("metadata"), dict):
        return obj
    return with_metadata(obj, **dict.fromkeys(READ_ONLY_METADATA))


def is_owned_by(obj: JsonObject, owner: JsonObject) -> bool:
    """Tell whether the object's owner references contain the owner's uid."""
    owners = dig_list(obj, "metadata", "ownerReferences")
    return any(dig(reference, "uid") == uid_of(owner) for reference in owners)


def condition(obj: JsonObject, type_: str) -> JsonObject | None:
    """Return the entry of this type in `status.conditions`; None if the object has no such condition."""
    conditions = dig_list(obj, "status", "conditions")
    return next((entry for entry in conditions if dig(entry, "type") == type_), None)


def _rename_keys(value: object, names: Mapping[str, str]) -> Any:
    """Return the tree with its keys renamed as `names` maps them."""
    if is_map(value):
        return {names.get(key, key): _rename_keys(item, names) for key, item in value.items()}
    if is_list(value):
        return [_rename_keys(item, names) for item in value]
    return value


def mark_secrets(outputs: dict[str, Tree], inputs: dict[str, Tree]) -> dict[str, Tree]:
    """Return `outputs` with all values marked secret that are secret in `inputs`.

    A list that contains a secret is marked as a whole, because a server may reorder lists. The data of a Secret are
    always marked.
    """
    if outputs.get("kind") == "Secret":
        return {key: _secret(value) if key in {"data", "stringData"} else value for key, value in outputs.items()}
    marked: dict[str, Tree] = {}
    for key, value in outputs.items():
        given = inputs.get(key)
        if isinstance(value, dict) and isinstance(given, dict):
            marked[key] = {**mark_secrets(value, given)}
        else:
            marked[key] = _secret(value) if has_secrets(given) else value
    return marked


def _secret(value: Tree) -> Secret:
    return value if isinstance(value, Secret) else Secret(value)


def prune(live: JsonObject, shape: JsonObject) -> JsonObject:
    """Return the live values of the fields that `shape` has, the fields that a program had set.

    Fields that `live` lacks and that are false, zero or empty in `shape` are added, because an API server omits most of
    them from its answers.
    """
    answered = {key: _prune_value(value, shape[key]) for key, value in live.items() if key in shape}
    omitted = {key: value for key, value in shape.items() if key not in live and value in (False, 0, "")}
    return {**answered, **omitted}


def _prune_value(live: Any, shape: Any) -> Any:
    if is_map(live) and is_map(shape):
        return prune(live, shape)
    if is_list(live) and is_list(shape):
        return [_prune_value(item, model) for item, model in zip(live, shape, strict=False)]
    return live


def to_object(tree: dict[str, Tree]) -> JsonObject:
    """Return the Kubernetes object of a resource's inputs: secrets unwrapped, keys as in Kubernetes' API, unknown
    values kept.
    """
    return _rename_keys(without_secrets(tree), _DASHED)


def _to_tree(obj: JsonObject, secrets_of: dict[str, Tree]) -> dict[str, Tree]:
    return mark_secrets(_rename_keys(obj, _UNDERSCORED), secrets_of)


@dataclass(frozen=True)
class Checkpoint:
    """Parts of a Kubernetes object's state that the engine records: inputs, live values and field manager."""

    inputs: JsonObject
    live: JsonObject
    initial_api_version: str
    manager: str

    @classmethod
    def parse(cls, state: dict[str, Tree]) -> "Checkpoint":
        """Return the parts of a state that the engine recorded; parts that the state doesn't have are empty."""
        live = to_object(state)
        inputs: Any = live.pop(INPUTS, None) or {}
        version: str = live.pop(INITIAL_API_VERSION, None) or inputs.get("apiVersion") or ""
        manager: str = live.pop(MANAGER, None) or ""
        return cls(inputs, live, version, manager)

    def tree(self, secrets_of: dict[str, Tree]) -> dict[str, Tree]:
        """Return the state for the engine to record, with the values marked secret that are secret in `secrets_of`."""
        return {
            **_to_tree(self.live, secrets_of),
            INPUTS: _to_tree(self.inputs, secrets_of),
            INITIAL_API_VERSION: self.initial_api_version,
            MANAGER: self.manager,
        }
