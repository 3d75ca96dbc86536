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


def test_an_oci_request_is_signed_and_goes_to_the_services_host():
    transport = Transport(answer({"a": 1}))
    assert transport.client.get("limits", "/limitDefinitions", serviceName="compute") == {"a": 1}
    (request,) = transport.requests
    assert str(request.url) == (
        "https://limits.us-ashburn-1.oci.oraclecloud.com/20190729/limitDefinitions?serviceName=compute"
    )
    assert request.headers["authorization"].startswith('Signature algorithm="rsa-sha256"')


def test_the_body_of_an_oci_request_is_signed():
    transport = Transport(answer({}))
    transport.client.send("POST", "bastion", "/sessions", {"bastionId": "b"})
    (request,) = transport.requests
    assert json.loads(request.content) == {"bastionId": "b"}
    assert "x-content-sha256" in request.headers["authorization"]


def test_every_page_of_a_paginated_oci_list_is_read():
    transport = Transport(answer([1, 2], opc_next_page="p2"), answer([3]))
    assert transport.client.get("identity", "/policies") == [1, 2, 3]
    assert transport.requests[1].url.params["page"] == "p2"


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


def test_a_request_to_a_busy_oci_service_is_repeated():
    transport = Transport(answer({}, 429), answer({}, 503), answer({"a": 1}))
    assert transport.client.get("compute", "/x") == {"a": 1}
    assert transport.pauses == [2.0, 4.0]


def test_a_request_that_may_have_been_executed_is_not_repeated():
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


def existing(identifier: str):
    return validate(stack(cluster=existing_cluster(identifier=identifier)))


@pytest.mark.parametrize(
    ("identifier", "region"),
    [("ocid1.cluster.oc1.iad.aaa", "us-ashburn-1"), ("ocid1.cluster.oc1.eu-zurich-1.aaa", "eu-zurich-1")],
)
def test_the_region_of_an_existing_cluster_is_taken_from_its_ocid(identifier: str, region: str):
    assert region_of(existing(identifier)) == region


def test_a_given_region_is_preferred_to_the_region_in_the_clusters_ocid():
    assert region_of(existing("ocid1.cluster.oc1.iad.aaa"), "uk-london-1") == "uk-london-1"
    with pytest.raises(KitError, match="which region"):
        region_of(existing("somewhere"))


LINK = "https://objectstorage.example/p/secret/o/image.oci"
HASH = bytes(range(16))
DIGEST = bytes(range(32))


def behind(status: int = 200, **headers: str) -> StoredFile:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert (request.method, str(request.url)) == ("HEAD", LINK)
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
def test_checksums_of_an_object_are_those_in_the_headers_of_object_storage(
    headers: dict[str, str], checksums: tuple[str, ...]
):
    assert behind(content_length="4096", **headers) == StoredFile(4096, checksums)


@pytest.mark.parametrize("status", [401, 404, 500])
def test_the_error_for_an_invalid_object_storage_link_does_not_show_the_link(status: int):
    with pytest.raises(OciError, match=str(status)) as caught:
        behind(status)
    assert "secret" not in str(caught.value)


def test_the_error_for_unreachable_object_storage_does_not_show_the_link():
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("no route to objectstorage.example/p/secret")

    with pytest.raises(OciError) as caught:
        stored_file(LINK, httpx2.Client(transport=httpx2.MockTransport(refuse)))
    assert "secret" not in str(caught.value)


def text_of(uri: str, content: bytes) -> str:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, stream=httpx2.ByteStream(content)))
    return stored_text(uri, httpx2.Client(transport=transport))


def test_a_downloaded_gzip_text_is_decompressed():
    assert text_of("https://example.com/Packages.gz", gzip.compress(b"Package: a\n")) == "Package: a\n"
    assert text_of("https://example.com/Packages", b"Package: a\n") == "Package: a\n"


@pytest.mark.parametrize("uri", ["https://example.com/Packages.gz", "https://example.com/Packages"])
def test_an_oversized_download_of_text_is_refused(uri: str):
    content = bytes(LONGEST_TEXT_BYTES + 1)
    with pytest.raises(OciError, match="is longer than"):
        text_of(uri, gzip.compress(content) if uri.endswith("gz") else content)


def test_a_downloaded_text_named_gz_that_is_not_gzipped_is_refused():
    with pytest.raises(OciError, match="can't be read"):
        text_of("https://example.com/Packages.gz", b"Package: a\n")
