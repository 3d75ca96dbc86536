"""A tokenizer as llm-d-kv-cache asks for it over gRPC (api/tokenizerpb/tokenizer.proto).

The tokens are those of a vLLM server's `/tokenize`. Run in a pod: `tokenizer_service.py PORT URL`, the server's URL.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "tokenization.TokenizationService"
Field = descriptor_pb2.FieldDescriptorProto
FIELDS = {
    "RenderCompletionRequest": {"model_name": (1, Field.TYPE_STRING), "prompt": (2, Field.TYPE_STRING)},
    "RenderCompletionResponse": {"token_ids": (2, Field.TYPE_UINT32), "success": (3, Field.TYPE_BOOL)},
    "InitializeTokenizerRequest": {"model_name": (1, Field.TYPE_STRING)},
    "InitializeTokenizerResponse": {"success": (1, Field.TYPE_BOOL)},
}


def messages() -> dict[str, Any]:
    """Make the classes of the messages, with the fields that are used here."""
    file = descriptor_pb2.FileDescriptorProto(name="tokenizer.proto", package="tokenization", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = Field.LABEL_REPEATED if field == "token_ids" else Field.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tokenization.{name}")) for name in FIELDS
    }


def main(port: str, url: str) -> None:
    known = messages()

    def tokens(prompt: str) -> list[int]:
        return httpx2.post(f"{url}/tokenize", json={"prompt": prompt}, timeout=5).raise_for_status().json()["tokens"]

    def initialize(request: Any, context: Any) -> Any:
        return known["InitializeTokenizerResponse"](success=True)

    def render(request: Any, context: Any) -> Any:
        return known["RenderCompletionResponse"](token_ids=tokens(request.prompt), success=True)

    def handler(name: str, answer: Callable[[Any, Any], Any]) -> Any:
        request, response = known[f"{name}Request"], known[f"{name}Response"]
        return grpc.unary_unary_rpc_method_handler(answer, request.FromString, response.SerializeToString)

    answers = {"InitializeTokenizer": initialize, "RenderCompletion": render}
    methods = {name: handler(name, answer) for name, answer in answers.items()}
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(f"0.0.0.0:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
