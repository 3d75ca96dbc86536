"""The engine's protocol: its generated messages, and property trees in its encoding.

This is the one module that meets the generated code, which carries no types: what it exports is `Any` for that reason.
"""

from typing import Any, Final

from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from llmd_oke.rehearsal.plugin_protocol.trees import UNKNOWN, Secret, Tree

provider: Any = provider_pb2
plugin: Any = plugin_pb2
Status: Any = status_pb2.Status
Empty: Any = empty_pb2.Empty
Struct: Any = struct_pb2.Struct
Servicer: Any = provider_pb2_grpc.ResourceProviderServicer
add_servicer: Any = provider_pb2_grpc.add_ResourceProviderServicer_to_server  # pyright: ignore[reportUnknownVariableType]
Stub: Any = provider_pb2_grpc.ResourceProviderStub

# Constants of the protocol: sdk/go/common/resource/properties.go and plugin/rpc.go of pulumi/pulumi.
SIGNATURE_KEY: Final = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - marks secrets, is none
UNKNOWN_TEXT: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


def decode(message: Any) -> dict[str, Tree]:
    """The tree that a Struct holds; whole numbers become ints, for services tell them from others."""
    return {key: _decode_value(value) for key, value in message.fields.items()}


def _decode_value(value: Any) -> Tree:
    match value.WhichOneof("kind"):
        case "string_value":
            return UNKNOWN if value.string_value == UNKNOWN_TEXT else value.string_value
        case "number_value":
            return int(value.number_value) if value.number_value.is_integer() else value.number_value
        case "bool_value":
            return value.bool_value
        case "list_value":
            return [_decode_value(item) for item in value.list_value.values]
        case "struct_value":
            return _decode_struct(value.struct_value)
        case _:
            return None


def _decode_struct(message: Any) -> Tree:
    fields = message.fields
    if SIGNATURE_KEY in fields and fields[SIGNATURE_KEY].string_value == SECRET_SIGNATURE:
        return Secret(_decode_value(fields["value"]))
    return {**decode(message)}


def encode(tree: dict[str, Tree]) -> Any:
    """The Struct that holds the tree."""
    message = Struct()
    _fill_struct(message, tree)
    return message


def _fill_struct(message: Any, tree: dict[str, Tree]) -> None:
    message.SetInParent()
    for key, value in tree.items():
        _fill_value(message.fields[key], value)


def _fill_value(message: Any, value: Tree) -> None:
    match value:
        case None:
            message.null_value = 0
        case bool():
            message.bool_value = value
        case int() | float():
            message.number_value = value
        case str():
            message.string_value = value
        case Secret(inner):
            _fill_struct(message.struct_value, {SIGNATURE_KEY: SECRET_SIGNATURE, "value": inner})
        case list():
            message.list_value.SetInParent()
            for item in value:
                _fill_value(message.list_value.values.add(), item)
        case dict():
            _fill_struct(message.struct_value, value)
        case _:
            message.string_value = UNKNOWN_TEXT
