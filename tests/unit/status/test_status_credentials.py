"""`llmd-oke status` about certificates and other secrets of a stack."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import stack_files
from certificates_for_tests import certificate, private_key
from stack_cluster import LONG_AGO, StackCluster, cluster_of, small_stack, symptoms, what

HOST = "llm.example.com"
DOOR = {
    "host": HOST,
    "tls": {"kind": "secret", "name": "own"},
    "authentication": {"kind": "api-keys"},
    "uncheckedPods": "accepted",
}


@pytest.fixture
def cluster() -> StackCluster:
    """A healthy cluster of a stack with a front door."""
    return cluster_of(stack_files.plan(*small_stack()["models"], nodes=1, frontDoor=DOOR))


@pytest.fixture
def project(project: Path) -> Path:
    stack_files.write(project, "s", small_stack(frontDoor=DOOR))
    return project


def secret(name: str, kind: str = "Opaque", **data: str) -> dict[str, Any]:
    encoded = {key.replace("_", "."): base64.b64encode(text.encode()).decode() for key, text in data.items()}
    manager = {"manager": "pulumi-kubernetes", "operation": "Apply", "time": LONG_AGO}
    own = {"name": name, "creationTimestamp": LONG_AGO, "managedFields": [manager]}
    return {"metadata": own, "type": kind, "data": encoded}


def tls(days: float, host: str = HOST, *, of_another_key: bool = False) -> dict[str, Any]:
    key = private_key()
    chain = certificate(private_key() if of_another_key else key, host, datetime.now(UTC) + timedelta(days=days)).chain
    return secret("own", "kubernetes.io/tls", tls_crt=chain, tls_key=key.pem)


def test_the_status_shows_ages_of_secrets_and_the_end_of_certificates_but_no_key(run, cluster):
    keys = secret("front-door-access", authentication_json="planted")
    cluster.secrets = [tls(60.5), keys, secret("other")]
    result = run("status", "--json")
    own, access = json.loads(result.stdout)["credentials"]
    ends = (datetime.now(UTC) + timedelta(days=60.5)).date().isoformat()
    assert (result.exit_code, own["secret"], own["ends"][:10]) == (0, "own", ends)
    changed = "2026-11-20T02:00:00+00:00"
    assert access == {"secret": "front-door-access", "what": "API keys", "changed": changed, "ends": None}
    screen = run("status").stdout
    assert "own (certificate) changed" in screen
    assert f"ends {ends}" in screen
    assert not any(text in result.stdout + screen for text in ("PRIVATE", "planted", "LS0t"))


def test_the_status_reports_a_certificate_that_expires_soon(run, cluster):
    cluster.secrets = [tls(20.5)]
    assert what(run) == []
    (symptom,) = what(run, "--ends-within", "30")
    assert symptom.startswith("the certificate own ends in 20 days (")


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (lambda: tls(-1), "expired on"),
        (lambda: tls(60, "other.example.com"), "not for llm.example.com"),
        (lambda: tls(60, of_another_key=True), "it is another's key"),
    ],
)
def test_the_status_reports_a_certificate_that_clients_refuse_as_an_outage(run, cluster, own, why):
    cluster.secrets = [own()]
    (symptom,) = symptoms(run)
    assert symptom["severity"] == "outage"
    assert why in symptom["what"]


def test_the_status_is_shown_without_credentials_to_users_who_may_not_read_secrets(run, cluster):
    path = "/api/v1/namespaces/llm-d/secrets"
    cluster.answers[path] = 403, json.dumps({"kind": "Status", "code": 403, "message": "secrets is forbidden"})
    result = run("status", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["credentials"] == {"unread": "HTTP 403: secrets is forbidden"}


def test_the_status_reads_only_secrets_of_the_stack(run, cluster):
    run("status")
    names = {path.rpartition("%3D")[2] for path in cluster.asked if "/secrets" in path}
    assert names == {"own", "front-door-access", "huggingface-token", "model-source"}
