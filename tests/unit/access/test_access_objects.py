"""What Object Storage says of a file behind a link."""

import base64

import httpx
import pytest
from llmd_oke.access.objects import StoredFile, stored_file
from llmd_oke.access.oci_client import OciError

LINK = "https://objectstorage.example/p/secret/o/image.oci"
HASH = bytes(range(16))
DIGEST = bytes(range(32))


def behind(status: int = 200, **headers: str) -> StoredFile:
    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.method, str(request.url)) == ("HEAD", LINK)
        return httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return stored_file(LINK, httpx.Client(transport=httpx.MockTransport(answer)))


def test_a_file_that_was_uploaded_at_once_has_an_md5():
    found = behind(content_length="4096", content_md5=base64.b64encode(HASH).decode())
    assert found == StoredFile(4096, (f"md5:{HASH.hex()}",))


def test_a_file_that_was_uploaded_in_parts_has_the_hash_of_their_hashes():
    parts, digest = base64.b64encode(HASH).decode() + "-12", base64.b64encode(DIGEST).decode()
    found = behind(opc_multipart_md5=parts, opc_content_sha256=digest)
    assert found.checksums == (f"md5:{HASH.hex()}", f"sha256:{DIGEST.hex()}")


def test_a_header_that_is_no_checksum_is_left_out():
    assert behind(content_md5="?").checksums == ()


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_link_that_leads_nowhere_is_told_without_the_link(status: int):
    with pytest.raises(OciError, match=str(status)) as caught:
        behind(status)
    assert "secret" not in str(caught.value)


def test_a_server_that_does_not_answer_is_told_without_the_link():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route to objectstorage.example/p/secret")

    with pytest.raises(OciError) as caught:
        stored_file(LINK, httpx.Client(transport=httpx.MockTransport(refuse)))
    assert "secret" not in str(caught.value)
