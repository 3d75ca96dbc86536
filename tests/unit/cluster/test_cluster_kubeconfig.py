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


def test_the_address_and_the_authority_are_those_of_the_cluster():
    access = read_kubeconfig(KUBECONFIG)
    assert (access.server, access.host) == ("https://10.140.0.5:6443", "10.140.0.5")
    made = json.loads(assemble(access, CLUSTER, "us-ashburn-1"))
    assert made["clusters"][0]["cluster"] == {
        "server": "https://10.140.0.5:6443",
        "certificate-authority-data": access.certificate_authority,
    }


def test_credentials_come_from_the_kits_own_program():
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1"))
    program = made["users"][0]["user"]["exec"]
    assert [program["command"], *program["args"]] == [
        "llmd-oke", "token", "--cluster-id", CLUSTER, "--region", "us-ashburn-1",
    ]  # fmt: skip
    assert program["apiVersion"] == "client.authentication.k8s.io/v1beta1"
    assert program["interactiveMode"] == "Never"


def test_credentials_are_those_of_who_the_stack_signs_in_as():
    who = SignIn(Auth.API_KEY, "PROD")
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1", sign_in=who))
    args = made["users"][0]["user"]["exec"]["args"]
    assert args[-4:] == ["--auth", "api-key", "--profile", "PROD"]


def test_a_user_that_asks_no_program_is_kept():
    made = json.loads(assemble(read_kubeconfig(of_oke(CERTIFICATE)), CLUSTER, "us-ashburn-1"))
    assert made["users"][0]["user"] == CERTIFICATE


def test_a_tunnel_changes_the_address_and_not_what_is_checked():
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1", "https://127.0.0.1:6443"))
    cluster = made["clusters"][0]["cluster"]
    assert (cluster["server"], cluster["tls-server-name"]) == ("https://127.0.0.1:6443", "10.140.0.5")
    assert "insecure-skip-tls-verify" not in cluster


def test_the_one_context_is_the_current_one():
    made = json.loads(assemble(read_kubeconfig(KUBECONFIG), CLUSTER, "us-ashburn-1"))
    (context,) = made["contexts"]
    assert made["current-context"] == context["name"]
    assert context["context"] == {"cluster": made["clusters"][0]["name"], "user": made["users"][0]["name"]}


@pytest.mark.parametrize("text", ["", "a: [", "{}", '{"clusters": []}', '{"clusters": [{"cluster": {}}], "users": []}'])
def test_what_is_no_kubeconfig_is_told(text: str):
    with pytest.raises(KitError, match="can't be read"):
        read_kubeconfig(text)
