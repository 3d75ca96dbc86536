"""Signed requests to OCI's REST API, against a transport that remembers them."""

import json
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from llmd_oke.access.oci_client import OciError, SignedOciClient
from llmd_oke.access.places import region_of
from llmd_oke.access.signing import Signer
from llmd_oke.config import validate
from llmd_oke.errors import KitError

SIGNER = Signer("tenancy/user/fingerprint", rsa.generate_private_key(public_exponent=65537, key_size=2048))


class Transport:
    def __init__(self, *answers: httpx.Response) -> None:
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []
        self._answers = list(answers)
        http = httpx.Client(transport=httpx.MockTransport(self._answer))
        self.client = SignedOciClient(SIGNER, "us-ashburn-1", http, self.pauses.append)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._answers.pop(0)


def answer(document: Any, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=document, headers={key.replace("_", "-"): v for key, v in headers.items()})


def test_a_question_is_signed_and_goes_to_the_services_host():
    transport = Transport(answer({"a": 1}))
    assert transport.client.get("limits", "/limitDefinitions", serviceName="compute") == {"a": 1}
    (request,) = transport.requests
    assert str(request.url) == (
        "https://limits.us-ashburn-1.oci.oraclecloud.com/20190729/limitDefinitions?serviceName=compute"
    )
    assert request.headers["authorization"].startswith('Signature algorithm="rsa-sha256"')


def test_a_body_is_signed_too():
    transport = Transport(answer({}))
    transport.client.send("POST", "bastion", "/sessions", {"bastionId": "b"})
    (request,) = transport.requests
    assert json.loads(request.content) == {"bastionId": "b"}
    assert "x-content-sha256" in request.headers["authorization"]


def test_all_pages_of_a_list_are_read():
    transport = Transport(answer([1, 2], opc_next_page="p2"), answer([3]))
    assert transport.client.get("identity", "/policies") == [1, 2, 3]
    assert transport.requests[1].url.params["page"] == "p2"


def test_a_busy_service_is_asked_again():
    transport = Transport(answer({}, 429), answer({}, 503), answer({"a": 1}))
    assert transport.client.get("compute", "/x") == {"a": 1}
    assert transport.pauses == [2.0, 4.0]


def test_what_may_have_been_taken_is_not_sent_again():
    transport = Transport(answer({"code": "InternalError", "message": "m"}, 500))
    with pytest.raises(OciError):
        transport.client.send("POST", "bastion", "/sessions", {})
    assert len(transport.requests) == 1


def test_a_refusal_carries_ocis_words_and_no_query():
    transport = Transport(answer({"code": "NotAuthorizedOrNotFound", "message": "no"}, 404))
    with pytest.raises(OciError) as refused:
        transport.client.get("compute", "/images/x", secret="s")
    assert (refused.value.status, refused.value.code) == (404, "NotAuthorizedOrNotFound")
    assert "secret" not in refused.value.message


def existing(identifier: str):
    return validate(
        {
            "cluster": {"mode": "existing", "identifier": identifier},
            "gpuPools": [{"name": "a", "shape": "BM.GPU.MI300X.8", "size": 1}],
            "release": "llm-d-0.9.0",
            "models": [
                {
                    "model": "gpt-oss-120b",
                    "topology": "agg-tp1-1r",
                    "workload": {"inputTokens": 1, "outputTokens": 1},
                }
            ],
        }
    )


@pytest.mark.parametrize(
    ("identifier", "region"),
    [("ocid1.cluster.oc1.iad.aaa", "us-ashburn-1"), ("ocid1.cluster.oc1.eu-zurich-1.aaa", "eu-zurich-1")],
)
def test_an_ocid_says_its_region(identifier: str, region: str):
    assert region_of(existing(identifier)) == region


def test_a_region_that_is_asked_for_wins_and_without_any_it_is_asked_for():
    assert region_of(existing("ocid1.cluster.oc1.iad.aaa"), "uk-london-1") == "uk-london-1"
    with pytest.raises(KitError, match="which region"):
        region_of(existing("somewhere"))
