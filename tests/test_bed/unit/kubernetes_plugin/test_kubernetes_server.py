import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from llmd_rehearsal.kubernetes_plugin.server import start
from llmd_rehearsal.plugin_protocol import Empty, Stub, decode, encode, plugin, provider
from llmd_rehearsal.plugin_values import UNKNOWN
from pulumi._types import input_type_types
from pulumi_kubernetes import ProviderArgs

URN = "urn:pulumi:dev::p::kubernetes:core/v1:ConfigMap::cm"
INPUTS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm", "namespace": "n"}, "data": {"k": "v"}}


@pytest.fixture
def stub() -> Iterator[Any]:
    server = start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Stub(channel)
    server.stop()


def configured(stub: Any) -> Any:
    stub.Configure(provider.ConfigureRequest(args=encode({"kubeconfig": "not a kubeconfig"})))
    return stub


def create(stub: Any, *, preview: bool, kind: str = "core/v1:ConfigMap") -> Any:
    return stub.Create(
        provider.CreateRequest(urn=URN, type=f"kubernetes:{kind}", properties=encode(INPUTS), preview=preview)
    )


def error_of(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as failure:
        call(*arguments, **named)
    return failure.value.code(), failure.value.details()


def test_the_stand_in_reports_the_plug_in_version_that_it_implements(stub: Any):
    assert stub.GetPluginInfo(Empty()).version == "4.30.0"


def test_the_stand_ins_schema_has_the_settings_of_pulumis_kubernetes_provider(stub: Any):
    schema = json.loads(stub.GetSchema(provider.GetSchemaRequest()).schema)
    names = {str: "string", bool: "boolean"}
    types = {name: names[kind] for name, kind in input_type_types(ProviderArgs).items() if kind in names}
    assert {name: said["type"] for name, said in schema["provider"]["inputProperties"].items()} == types


def test_the_handshake_call_is_unimplemented_as_in_the_real_plug_in(stub: Any):
    refused = error_of(stub.Handshake, provider.ProviderHandshakeRequest())
    assert refused == (grpc.StatusCode.UNIMPLEMENTED, "method Handshake not implemented")


def test_pulumi_can_attach_to_a_running_kubernetes_stand_in(stub: Any):
    assert stub.Attach(plugin.PluginAttach(address="127.0.0.1:1")) == Empty()


def test_a_preview_without_a_cluster_returns_an_objects_inputs_unchanged(stub: Any):
    answer = create(configured(stub), preview=True)
    assert (answer.id, decode(answer.properties)) == ("", INPUTS)


def test_an_update_of_a_kubernetes_object_without_a_cluster_fails_with_an_error(stub: Any):
    code, words = error_of(create, configured(stub), preview=False)
    assert code == grpc.StatusCode.UNKNOWN
    assert words.startswith("configured Kubernetes cluster is unreachable: failed to parse kubeconfig")


def test_a_kubernetes_kind_that_the_stand_in_does_not_list_is_refused(stub: Any):
    _, words = error_of(create, configured(stub), preview=True, kind="core/v1:PodTemplate")
    assert "kubernetes:core/v1:PodTemplate is not in this rehearsal" in words


def test_a_call_to_the_kubernetes_stand_in_before_its_configuration_is_refused(stub: Any):
    assert error_of(create, stub, preview=True)[1] == "the Kubernetes provider was not configured"


def test_yaml_is_parsed_and_kubernetes_lists_are_split_into_objects(stub: Any):
    text = "kind: List\nitems: [{kind: A}, {kind: B, metadata: {namespace: own}}]\n---\nkind: C\n"
    arguments = encode({"text": text, "defaultNamespace": "n"})
    answer = stub.Invoke(provider.InvokeRequest(tok="kubernetes:yaml:decode", args=arguments))
    assert decode(getattr(answer, "return")) == {
        "result": [
            {"kind": "A", "metadata": {"namespace": "n"}},
            {"kind": "B", "metadata": {"namespace": "own"}},
            {"kind": "C", "metadata": {"namespace": "n"}},
        ]
    }


def test_objects_that_depend_on_a_replaced_object_are_diffed_with_unknown_values(stub: Any):
    configured(stub)
    olds = create(stub, preview=True).properties
    news = encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": UNKNOWN, "data": UNKNOWN})
    given = {"urn": URN, "type": "kubernetes:core/v1:ConfigMap", "olds": olds, "news": news}
    assert stub.Diff(provider.DiffRequest(id="n/cm", **given)).changes == provider.DiffResponse.DIFF_SOME
