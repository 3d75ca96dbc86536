"""The component package: what Pulumi's analyzer makes of the components, as the plug-in serves it to the engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import llmd_oke
import pytest
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

COMPONENTS = Path(__file__).resolve().parents[2] / "components"
COMMITTED = COMPONENTS / "schema.json"


@pytest.fixture(scope="module")
def schema():
    """Return what the plug-in answers, started as the engine starts it; the first line that it writes is its port."""
    process = subprocess.Popen([sys.executable, str(COMPONENTS), "127.0.0.1:1"], stdout=subprocess.PIPE)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{int(process.stdout.readline())}") as channel:
            stub = provider_pb2_grpc.ResourceProviderStub(channel)
            yield json.loads(stub.GetSchema(provider_pb2.GetSchemaRequest(), timeout=30).schema)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_the_component_schema_equals_the_committed_schema_file(schema):
    """Compare with `components/schema.json`; `LLMD_OKE_UPDATE_GOLDEN=1` accepts a change; review its diff."""
    text = json.dumps(schema, indent=2, sort_keys=True) + "\n"
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        COMMITTED.write_text(text)
    assert COMMITTED.read_text() == text, "set LLMD_OKE_UPDATE_GOLDEN=1 to accept this"


def test_every_input_output_and_resource_of_the_component_schema_has_a_description(schema):
    assert [name for name, entry in schema["resources"].items() if not entry.get("description")] == []
    for name, entry in {**schema["resources"], **schema["types"]}.items():
        for kind in ("inputProperties", "properties"):
            assert [key for key, value in entry.get(kind, {}).items() if not value.get("description")] == [], name


def test_components_have_tokens_of_the_kit_and_are_exported_with_their_arguments(schema):
    assert {token.rsplit(":", 1)[0] for token in schema["resources"]} == {"llmd-oke:index"}
    names = {token.rsplit(":", 1)[1] for token in schema["resources"]}
    assert names | {f"{name}Args" for name in names} <= set(llmd_oke.__all__)
