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


def assembled(kubeconfig: str = KUBECONFIG, *tunnel: str, **options: Any) -> dict[str, Any]:
    return json.loads(assemble(read_kubeconfig(kubeconfig), CLUSTER, "us-ashburn-1", *tunnel, **options))


def test_the_kubeconfig_has_one_context_that_joins_its_user_and_the_clusters_address():
    access, made = read_kubeconfig(KUBECONFIG), assembled()
    assert (access.server, access.host) == ("https://10.140.0.5:6443", "10.140.0.5")
    assert (made["apiVersion"], made["kind"], made["current-context"]) == ("v1", "Config", "context")
    (context,), (cluster,), (user,) = made["contexts"], made["clusters"], made["users"]
    assert context == {"name": "context", "context": {"cluster": cluster["name"], "user": user["name"]}}
    address = {"server": access.server, "certificate-authority-data": access.certificate_authority}
    assert cluster["cluster"] == address


@pytest.mark.parametrize(
    ("options", "more"),
    [({}, []), ({"sign_in": SignIn(Auth.API_KEY, "PROD")}, ["--auth", "api-key", "--profile", "PROD"])],
    ids=["the usual authentication", "the stack's authentication"],
)
def test_the_kubeconfig_gets_credentials_from_the_kits_token_command(options: dict[str, Any], more: list[str]):
    program = assembled(**options)["users"][0]["user"]["exec"]
    usual = ["llmd-oke", "token", "--cluster-id", CLUSTER, "--region", "us-ashburn-1"]
    assert [program["command"], *program["args"]] == [*usual, *more]
    assert program["apiVersion"] == "client.authentication.k8s.io/v1beta1"
    assert program["interactiveMode"] == "Never"


def test_the_kubeconfig_user_with_a_client_certificate_is_copied_unchanged():
    document = json.loads(KUBECONFIG)
    document["users"][0]["user"] = CERTIFICATE
    assert assembled(json.dumps(document))["users"][0]["user"] == CERTIFICATE


def test_a_tunnel_changes_the_kubeconfigs_server_and_not_its_tls_server_name():
    cluster = assembled(KUBECONFIG, "https://127.0.0.1:6443")["clusters"][0]["cluster"]
    assert (cluster["server"], cluster["tls-server-name"]) == ("https://127.0.0.1:6443", "10.140.0.5")
    assert "insecure-skip-tls-verify" not in cluster


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
