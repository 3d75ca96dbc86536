"""Kubeconfigs without credentials in them."""

import json
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.access.sign_in import Auth, SignIn
from llmd_oke.cluster.oke_cluster import assemble
from llmd_oke.config.cluster import read_kubeconfig
from llmd_oke.testing import KUBECONFIG

CLUSTER = "ocid1.cluster.oc1.iad.c"
CERTIFICATE: dict[str, Any] = {"client-certificate-data": "Yw==", "client-key-data": "aw=="}


def of_oke(user: dict[str, Any]) -> str:
    document = json.loads(KUBECONFIG)
    document["users"][0]["user"] = user
    return json.dumps(document)


def test_the_kubeconfig_has_the_clusters_address_and_authority():
    access = read_kubeconfig(KUBECONFIG)
    assert (access.server, access.host) == ("https://10.140.0.5:6443", "10.140.0.5")
    made = json.loads(assemble(access, CLUSTER, "us-ashburn-1"))
    assert made["clusters"][0]["cluster"] == {
        "server": "https://10.140.0.5:6443",
        "certificate-authority-data": access.certificate_authority,
    }


def test_the_kubeconfig_has_one_context_that_joins_its_cluster_and_its_user():
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1"))
    assert (made["apiVersion"], made["kind"], made["current-context"]) == ("v1", "Config", "context")
    (context,), (cluster,), (user,) = made["contexts"], made["clusters"], made["users"]
    assert context == {"name": "context", "context": {"cluster": cluster["name"], "user": user["name"]}}


def test_the_kubeconfig_gets_credentials_from_the_kits_token_command():
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1"))
    program = made["users"][0]["user"]["exec"]
    assert [program["command"], *program["args"]] == [
        "llmd-oke", "token", "--cluster-id", CLUSTER, "--region", "us-ashburn-1",
    ]  # fmt: skip
    assert program["apiVersion"] == "client.authentication.k8s.io/v1beta1"
    assert program["interactiveMode"] == "Never"


def test_the_kubeconfigs_token_command_has_the_stacks_oci_authentication_method():
    who = SignIn(Auth.API_KEY, "PROD")
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1", sign_in=who))
    args = made["users"][0]["user"]["exec"]["args"]
    assert args[-4:] == ["--auth", "api-key", "--profile", "PROD"]


def test_the_kubeconfig_user_with_a_client_certificate_is_copied_unchanged():
    made = json.loads(assemble(read_kubeconfig(of_oke(CERTIFICATE)), CLUSTER, "us-ashburn-1"))
    assert made["users"][0]["user"] == CERTIFICATE


def test_a_tunnel_changes_the_kubeconfigs_server_and_not_its_tls_server_name():
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1", "https://127.0.0.1:6443"))
    cluster = made["clusters"][0]["cluster"]
    assert (cluster["server"], cluster["tls-server-name"]) == ("https://127.0.0.1:6443", "10.140.0.5")
    assert "insecure-skip-tls-verify" not in cluster


def test_the_only_context_of_the_kubeconfig_is_current():
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1"))
    (context,) = made["contexts"]
    assert made["current-context"] == context["name"]
    assert context["context"] == {"cluster": made["clusters"][0]["name"], "user": made["users"][0]["name"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "{}",
        '{"clusters": []}',
        '{"clusters": [{"cluster": {}}], "users": []}',
        KUBECONFIG.replace("https://", "http://"),
        KUBECONFIG.replace("https://10.140.0.5:6443", "https://"),
    ],
)
def test_an_invalid_kubeconfig_is_reported(text: str):
    with pytest.raises(KitError, match="can't be read"):
        read_kubeconfig(text)
