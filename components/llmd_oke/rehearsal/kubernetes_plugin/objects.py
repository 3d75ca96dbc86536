"""Names, annotations and other marks of Kubernetes objects."""

from typing import Final

from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN, JsonObject, dig, dig_list, dig_map

AUTONAMED: Final = "pulumi.com/autonamed"
DELETION_PROPAGATION: Final = "pulumi.com/deletionPropagationPolicy"
FIELD_MANAGER: Final = "pulumi.com/patchFieldManager"
PATCH_FORCE: Final = "pulumi.com/patchForce"
REPLACE_UNREADY: Final = "pulumi.com/replaceUnready"
SKIP_AWAIT: Final = "pulumi.com/skipAwait"
TIMEOUT_SECONDS: Final = "pulumi.com/timeoutSeconds"

READ_ONLY_METADATA: Final = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
)


def name_of(obj: JsonObject) -> str:
    """The object's name, or an empty text (also for a name that isn't known yet)."""
    name = dig(obj, "metadata", "name")
    return name if isinstance(name, str) else ""


def namespace_of(obj: JsonObject) -> str:
    """The object's namespace, or an empty text."""
    namespace = dig(obj, "metadata", "namespace")
    return namespace if isinstance(namespace, str) else ""


def is_named(obj: JsonObject) -> bool:
    """Whether the program gave a name, known or not."""
    return dig(obj, "metadata", "name") is UNKNOWN or bool(name_of(obj))


def uid_of(obj: JsonObject) -> str:
    """The object's uid, or an empty text."""
    return dig(obj, "metadata", "uid") or ""


def annotation(obj: JsonObject, name: str) -> str:
    """An annotation's text, or an empty text."""
    value = dig(obj, "metadata", "annotations", name)
    return value if isinstance(value, str) else ""


def is_annotated_true(obj: JsonObject, name: str) -> bool:
    """Whether an annotation is there and says `true`."""
    return annotation(obj, name).lower() == "true"


def id_of(obj: JsonObject) -> str:
    """The id that the engine keeps: `namespace/name`, or `name` for what has no namespace."""
    namespace = namespace_of(obj)
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)


def split_id(id_: str) -> tuple[str, str]:
    """Namespace (empty where there is none) and name from an id."""
    namespace, _, name = id_.rpartition("/")
    return namespace, name


def with_metadata(obj: JsonObject, **fields: object) -> JsonObject:
    """A copy with fields of the metadata set; None removes a field. Metadata that are not known yet stay so: the engine
    asks what depends on something that is made anew as if nothing were known of it.
    """
    if obj.get("metadata") is UNKNOWN:
        return obj
    metadata = {**dig_map(obj, "metadata"), **fields}
    return {**obj, "metadata": {key: value for key, value in metadata.items() if value is not None}}


def without_read_only_metadata(obj: JsonObject) -> JsonObject:
    """A copy without the fields of the metadata that only a server sets."""
    if not isinstance(obj.get("metadata"), dict):
        return obj
    return with_metadata(obj, **dict.fromkeys(READ_ONLY_METADATA))


def is_owned_by(obj: JsonObject, owner: JsonObject) -> bool:
    """Whether the owner, by its uid, directly owns the object."""
    owners = dig_list(obj, "metadata", "ownerReferences")
    return any(dig(reference, "uid") == uid_of(owner) for reference in owners)


def condition(obj: JsonObject, type_: str) -> JsonObject | None:
    """The entry of that type among `status.conditions`."""
    conditions = dig_list(obj, "status", "conditions")
    return next((entry for entry in conditions if dig(entry, "type") == type_), None)
