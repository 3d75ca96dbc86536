import base64
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from certificates_for_tests import certificate, private_key
from llmd_base.errors import InvalidStack, KitError
from llmd_oke.operations.cluster_checks import ReadSecret, StoredSecret, certificate_findings, refuse_certificates
from llmd_oke.operations.findings import Finding, Verdict
from stack_files import plan

HOST = "llm.example.com"
DOOR = {"host": HOST, "tls": {"kind": "secret", "name": "door"}}


@cache
def key():
    return private_key()


def stored(host: str = HOST, days: int = 30, type_: str = "kubernetes.io/tls") -> StoredSecret:
    chain = certificate(key(), host, datetime.now(UTC) + timedelta(days=days)).chain
    data = {"tls.crt": chain, "tls.key": key().pem}
    return StoredSecret(type_, {name: base64.b64encode(text.encode()).decode() for name, text in data.items()})


def finding(secret: StoredSecret | None) -> Finding:
    (result,) = certificate_findings(plan(frontDoor=DOOR), lambda _namespace, _name: secret)
    assert result.path == "frontDoor.tls.name"
    return result


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (None, "there is no Secret llm-d/door"),
        (stored(days=-1), "expired on"),
        (stored(days=400), "is valid from"),
        (stored(host="other.example.com"), "it is for other.example.com, not for llm.example.com"),
        (stored(type_="Opaque"), "the Secret llm-d/door is of type Opaque"),
        (StoredSecret("kubernetes.io/tls", {"tls.crt": "?"}), "it is missing, or no certificate"),
    ],
    ids=["missing", "expired", "not yet valid", "another host", "another type", "no certificate"],
)
def test_a_front_door_certificate_that_no_client_would_accept_is_a_problem(secret: StoredSecret | None, words: str):
    result = finding(secret)
    assert result.verdict is Verdict.PROBLEM
    assert words in result.value
    assert result.remedy


@pytest.mark.parametrize(
    ("secret", "accepted"),
    [
        (stored(days=-1), "a renewed certificate"),
        (stored(days=400), "a certificate of now"),
        (stored(host="other.example.com"), "a certificate for llm.example.com"),
    ],
    ids=["expired", "not yet valid", "another host"],
)
def test_an_update_with_a_front_door_certificate_that_clients_refuse_is_refused(secret: StoredSecret, accepted: str):
    with pytest.raises(InvalidStack) as refused:
        refuse_certificates(plan(frontDoor=DOOR), lambda _namespace, _name: secret)
    (problem,) = refused.value.problems
    assert (problem.path, problem.value, problem.accepted) == ("frontDoor.tls.name", "door", accepted)


def silent(_namespace: str, _name: str) -> StoredSecret:
    raise KitError("The cluster does not answer.", "Is KUBECONFIG that of the cluster?")


@pytest.mark.parametrize("read", [lambda _namespace, _name: None, silent], ids=["no Secret yet", "no answer"])
def test_an_update_goes_on_if_the_front_doors_certificate_cannot_be_read(read: ReadSecret):
    refuse_certificates(plan(frontDoor=DOOR), read)


def test_a_front_doors_certificate_for_its_host_is_fine_and_unknown_without_answer():
    assert finding(stored()).verdict is Verdict.FINE
    (result,) = certificate_findings(plan(frontDoor=DOOR), silent)
    assert (result.verdict, result.value) == (Verdict.UNKNOWN, "The cluster does not answer.")
    assert certificate_findings(plan()) == []
