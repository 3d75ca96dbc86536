"""Signed requests to OCI's REST API, against a transport that remembers them."""

import base64
import gzip
import json
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from llmd_base.errors import KitError
from llmd_oke.access.addresses import region_of
from llmd_oke.access.oci_client import (
    LONGEST_TEXT_BYTES,
    OciError,
    SignedOciClient,
    StoredFile,
    stored_file,
    stored_text,
)
from llmd_oke.access.signing import Signer
from llmd_oke.catalogue.operations import OciResource, oci_resources
from llmd_oke.config import validate
from stack_files import existing_cluster, stack

SIGNER = Signer("tenancy/user/fingerprint", rsa.generate_private_key(public_exponent=65537, key_size=2048))


class Transport:
    def __init__(self, *answers: httpx2.Response) -> None:
        self.requests: list[httpx2.Request] = []
        self.pauses: list[float] = []
        self._answers = list(answers)
        http = httpx2.Client(transport=httpx2.MockTransport(self._answer))
        self.client = SignedOciClient(SIGNER, "us-ashburn-1", http, self.pauses.append)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self._answers.pop(0)


def answer(document: Any, status: int = 200, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json=document, headers={key.replace("_", "-"): v for key, v in headers.items()})


def test_oci_requests_go_to_the_services_host_and_are_signed_with_their_bodies():
    transport = Transport(answer({"a": 1}), answer({}))
    assert transport.client.get("limits", "/limitDefinitions", serviceName="compute") == {"a": 1}
    transport.client.send("POST", "bastion", "/sessions", {"bastionId": "b"})
    asked, sent = transport.requests
    host = "https://limits.us-ashburn-1.oci.oraclecloud.com"
    assert str(asked.url) == f"{host}/20190729/limitDefinitions?serviceName=compute"
    assert asked.headers["authorization"].startswith('Signature algorithm="rsa-sha256"')
    assert json.loads(sent.content) == {"bastionId": "b"}
    assert "x-content-sha256" in sent.headers["authorization"]


@pytest.mark.parametrize(
    ("type_", "kind"), [(type_, kind) for type_, kind in oci_resources().resources.items() if kind.path]
)
def test_all_pages_of_each_list_that_recover_uses_are_read(type_: str, kind: OciResource):
    def page(*items: int) -> Any:
        return {kind.items: list(items)} if kind.items else list(items)

    transport = Transport(answer(page(1, 2), opc_next_page="p2"), answer(page(3), opc_next_page="p3"), answer(page(4)))
    assert transport.client.get(kind.service, kind.path.format_map({"clusterId": "c"})) == page(1, 2, 3, 4), type_
    assert [request.url.params.get("page") for request in transport.requests] == [None, "p2", "p3"]


def test_a_response_of_oci_that_is_no_list_has_no_further_pages():
    transport = Transport(answer({"id": "x"}, opc_next_page="p2"))
    assert transport.client.get("compute", "/instances/x") == {"id": "x"}


def test_a_request_to_a_busy_oci_service_is_repeated_unless_it_may_be_executed():
    transport = Transport(answer({}, 429), answer({}, 503), answer({"a": 1}))
    assert transport.client.get("compute", "/x") == {"a": 1}
    assert transport.pauses == [2.0, 4.0]
    transport = Transport(answer({"code": "InternalError", "message": "m"}, 500))
    with pytest.raises(OciError):
        transport.client.send("POST", "bastion", "/sessions", {})
    assert len(transport.requests) == 1


def test_the_error_for_a_refused_oci_request_has_ocis_message_without_the_query():
    transport = Transport(answer({"code": "NotAuthorizedOrNotFound", "message": "no"}, 404))
    with pytest.raises(OciError) as refused:
        transport.client.get("compute", "/images/x", secret="s")
    assert (refused.value.status, refused.value.code) == (404, "NotAuthorizedOrNotFound")
    assert "secret" not in refused.value.message


def test_the_region_of_an_existing_cluster_is_the_given_one_or_that_in_its_ocid():
    ashburn, zurich, elsewhere = (
        validate(stack(cluster=existing_cluster(identifier=identifier)))
        for identifier in ("ocid1.cluster.oc1.iad.aaa", "ocid1.cluster.oc1.eu-zurich-1.aaa", "somewhere")
    )
    assert (region_of(ashburn), region_of(zurich)) == ("us-ashburn-1", "eu-zurich-1")
    assert region_of(ashburn, "uk-london-1") == "uk-london-1"
    with pytest.raises(KitError, match="which region"):
        region_of(elsewhere)


LINK = "https://objectstorage.example/p/secret/o/image.oci"
HASH = bytes(range(16))
DIGEST = bytes(range(32))


def behind(status: int | None = 200, **headers: str) -> StoredFile:
    """Return the stored file behind the link, which is answered with this status; without one nobody answers."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert (request.method, str(request.url)) == ("HEAD", LINK)
        if status is None:
            raise httpx2.ConnectError(f"no route to {LINK}")
        return httpx2.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return stored_file(LINK, httpx2.Client(transport=httpx2.MockTransport(answer)))


MD5, SHA256 = base64.b64encode(HASH).decode(), base64.b64encode(DIGEST).decode()


@pytest.mark.parametrize(
    ("headers", "checksums"),
    [
        ({"content_md5": MD5}, (f"md5:{HASH.hex()}",)),
        (
            {"opc_multipart_md5": f"{MD5}-12", "opc_content_sha256": SHA256},
            (f"md5:{HASH.hex()}", f"sha256:{DIGEST.hex()}"),
        ),
        ({"content_md5": "?"}, ()),
    ],
    ids=["one piece", "parts", "invalid"],
)
def test_an_objects_checksums_are_in_the_headers_of_object_storage(headers: dict[str, str], checksums: tuple[str, ...]):
    assert behind(content_length="4096", **headers) == StoredFile(4096, checksums)


@pytest.mark.parametrize(("status", "said"), [(401, "401"), (404, "404"), (500, "500"), (None, "does not answer")])
def test_the_error_for_object_storage_that_refuses_or_is_unreachable_hides_the_link(status: int | None, said: str):
    with pytest.raises(OciError, match=said) as caught:
        behind(status)
    assert "secret" not in str(caught.value)


def text_of(uri: str, content: bytes) -> str:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, stream=httpx2.ByteStream(content)))
    return stored_text(uri, httpx2.Client(transport=transport))


def test_a_downloaded_text_named_gz_is_decompressed_or_refused():
    assert text_of("https://example.com/Packages.gz", gzip.compress(b"Package: a\n")) == "Package: a\n"
    assert text_of("https://example.com/Packages", b"Package: a\n") == "Package: a\n"
    with pytest.raises(OciError, match="can't be read"):
        text_of("https://example.com/Packages.gz", b"Package: a\n")


@pytest.mark.parametrize("uri", ["https://example.com/Packages.gz", "https://example.com/Packages"])
def test_an_oversized_download_of_text_is_refused(uri: str):
    content = bytes(LONGEST_TEXT_BYTES + 1)
    with pytest.raises(OciError, match="is longer than"):
        text_of(uri, gzip.compress(content) if uri.endswith("gz") else content)
