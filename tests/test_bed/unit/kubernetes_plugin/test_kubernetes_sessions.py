import json

import pytest
from llmd_rehearsal.kubernetes_plugin.client import find_access, load
from llmd_rehearsal.kubernetes_plugin.sessions import ProviderSettings, compare
from llmd_rehearsal.plugin_values import UNKNOWN, OperationRefusal


def config(server="https://a:1", user="u", namespace="ns"):
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": user, "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": user, "namespace": namespace}}],
            "current-context": "x",
        }
    )


NAMED = {"clusterIdentifier": "i"}


@pytest.mark.parametrize(
    ("olds", "news", "changed", "replaces"),
    [
        ({}, {}, (), ()),
        ({}, {"namespace": "n"}, ("namespace",), ()),
        ({"kubeconfig": config()}, {"kubeconfig": config(user="v")}, ("kubeconfig",), ()),
        ({"kubeconfig": config()}, {"kubeconfig": config("https://b:1")}, ("kubeconfig",), ("kubeconfig",)),
        ({"kubeconfig": config(), **NAMED}, {"kubeconfig": config("https://b:1"), **NAMED}, ("kubeconfig",), ()),
        (NAMED, {"clusterIdentifier": "j"}, ("clusterIdentifier",), ("clusterIdentifier",)),
        ({}, {"clusterIdentifier": "j"}, ("clusterIdentifier",), ()),
        ({"kubeconfig": config()}, {"kubeconfig": UNKNOWN}, ("kubeconfig",), ("kubeconfig",)),
    ],
)
def test_another_api_server_replaces_a_kubernetes_provider_unless_identifier_is_set(olds, news, changed, replaces):
    change = compare(olds, news)
    assert (change.changed, change.replaces) == (changed, replaces)


def test_boolean_provider_options_are_accepted_as_texts():
    texts = {"upsertExistingObjects": "true", "enablePatchForce": "false"}
    assert ProviderSettings.parse({"kubeconfig": config(), **texts}).flags == {"upsertExistingObjects"}


def test_the_kubeconfig_environment_variable_applies_if_the_program_sets_none(monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "/some/where")
    assert ProviderSettings.parse({}).kubeconfig == "/some/where"


@pytest.mark.parametrize("option", [{"enableServerSideApply": "false"}, {"renderYamlToDirectory": "/tmp/x"}])
def test_provider_options_that_rehearsals_lack_are_refused(option):
    with pytest.raises(OperationRefusal, match=next(iter(option))):
        ProviderSettings.parse(option)


def test_a_providers_kubeconfig_option_may_be_the_path_of_a_file(tmp_path):
    path = tmp_path / "config"
    path.write_text(config())
    access = find_access(load(str(path)))
    assert access is not None
    assert (access.server, access.namespace, access.headers()) == ("https://a:1", "ns", {"Authorization": "Bearer t"})


def test_a_text_that_is_no_kubeconfig_is_refused():
    with pytest.raises(OperationRefusal, match="failed to parse kubeconfig: couldn't get version/kind"):
        load("not a kubeconfig")
