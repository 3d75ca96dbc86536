"""A container's variables and arguments."""

from typing import Any, cast

import pytest
from lightkube.models.core_v1 import Container
from lightkube.resources.core_v1 import Service
from llmd_rehearsal.pods.environment import (
    MissingConfigError,
    environment,
    expand,
    field_value,
    quantity,
    resolve_argv,
    service_links,
)
from pods_for_tests import FACTS, FixedSources, make_pod

SOURCES = FixedSources({"settings": {"a": b"1", "b": b"2"}}, {"keys": {"token": b"s3cret"}})


def variables(container: dict[str, Any], links: dict[str, str] | None = None) -> dict[str, str]:
    body = {"name": "vllm", "image": "x", **container}
    pod = make_pod([body])
    return environment(pod, cast("Container", Container.from_dict(body)), FACTS, SOURCES, links or {})


def from_field(path: str) -> dict[str, Any]:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_a_containers_environment_variables_can_refer_to_earlier_ones() -> None:
    env = [{"name": "IP", **from_field("status.podIP")}, {"name": "URL", "value": "http://$(IP):$(PORT)"}]
    assert variables({"env": env})["URL"] == "http://10.244.3.7:$(PORT)"


def test_variables_in_a_containers_env_override_envfrom_and_service_links() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "S_"}],
        "env": [{"name": "S_b", "value": "own"}],
    }
    result = variables(container, {"S_a": "link", "LINK": "kept"})
    assert (result["S_a"], result["S_b"], result["LINK"]) == ("1", "own", "kept")


def test_secrets_in_variables_are_decoded_and_missing_optional_keys_omitted() -> None:
    missing = {"configMapKeyRef": {"name": "settings", "key": "no", "optional": True}}
    sources = {"TOKEN": {"secretKeyRef": {"name": "keys", "key": "token"}}, "X": missing}
    result = variables({"env": [{"name": name, "valueFrom": source} for name, source in sources.items()]})
    assert (result["TOKEN"], "X" in result) == ("s3cret", False)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "a"}}, 'configmap "none" not found'),
        ({"configMapKeyRef": {"name": "settings", "key": "z"}}, "couldn't find key z in configmap serving/settings"),
        ({"secretKeyRef": {"name": "none", "key": "a"}}, 'secret "none" not found'),
        ({"fieldRef": {"fieldPath": "spec.unknown"}}, "unsupported fieldPath: spec.unknown"),
    ],
)
def test_a_variables_missing_source_is_reported_in_the_kubelets_words(reference: dict[str, Any], message: str) -> None:
    with pytest.raises(MissingConfigError, match=message):
        variables({"env": [{"name": "X", "valueFrom": reference}]})


def test_a_missing_secret_in_envfrom_is_an_error_unless_it_is_optional() -> None:
    with pytest.raises(MissingConfigError):
        variables({"envFrom": [{"secretRef": {"name": "none"}}]})
    assert variables({"envFrom": [{"secretRef": {"name": "none", "optional": True}}]})["HOSTNAME"] == "decode-0"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"resource": "limits.amd.com/gpu"}, "2"),
        ({"resource": "requests.memory", "divisor": "1Gi"}, "2"),
        ({"resource": "limits.cpu"}, "112"),
        ({"resource": "requests.cpu"}, "2"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "1500"),
    ],
)
def test_resource_fields_in_variables_are_rounded_up_to_the_divisor(reference: dict[str, str], expected: str) -> None:
    resources = {"requests": {"cpu": "1500m", "memory": "1025Mi"}, "limits": {"amd.com/gpu": "2"}}
    env = [{"name": "R", "valueFrom": {"resourceFieldRef": reference}}]
    assert variables({"resources": resources, "env": env})["R"] == expected


def test_a_pods_labels_and_annotations_are_available_by_key_and_as_a_file() -> None:
    pod = make_pod()
    assert field_value(pod, FACTS, "metadata.labels['llm-d.ai/role']") == "decode"
    assert field_value(pod, FACTS, "metadata.annotations") == 'note="two\\n\\"lines\\""'


def test_an_invalid_kubernetes_quantity_in_a_resource_field_is_refused() -> None:
    with pytest.raises(MissingConfigError, match="not a quantity"):
        quantity("8 GiB")


def service(name: str, namespace: str = "serving", address: str = "10.96.1.2") -> Service:
    ports = [{"name": "http-main", "port": 8000}]
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": address, "ports": ports}}
    return cast("Service", Service.from_dict(body))


def test_service_links_of_a_service_named_vllm_define_vllm_port() -> None:
    links = service_links([service("vllm"), service("elsewhere", "other")], "serving", all_of_namespace=True)
    assert links["VLLM_PORT"] == "tcp://10.96.1.2:8000"
    assert links["VLLM_SERVICE_PORT_HTTP_MAIN"] == "8000"
    assert links["VLLM_PORT_8000_TCP_ADDR"] == "10.96.1.2"
    assert not any(name.startswith("ELSEWHERE") for name in links)


def test_without_service_links_a_pod_has_variables_of_the_api_server_only() -> None:
    services = [service("vllm"), service("kubernetes", "default", "10.96.0.1"), service("headless", address="None")]
    links = service_links(services, "serving", all_of_namespace=False)
    assert links["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    assert not any(name.startswith(("VLLM", "HEADLESS")) for name in links)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x-$(A)-$(B)", "x-1-two"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$$", "$$"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$(B)$(B)", "twotwo"),
    ],
)
def test_references_to_variables_in_commands_are_expanded_as_in_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "two"}) == expected


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        (None, None, ["/ep", "1", "image-arg"]),
        (None, ["a"], ["/ep", "1", "a"]),
        (["c"], None, ["c"]),
        (["c"], ["$(A)"], ["c", "1"]),
    ],
)
def test_a_containers_command_replaces_its_images_entrypoint_and_arguments(
    command: Any, arguments: Any, expected: list[str]
) -> None:
    assert resolve_argv(command, arguments, ["/ep", "$(A)"], ["image-arg"], {"A": "1"}) == expected
