"""What Object Storage says of a file behind a link."""

import base64
import gzip

import httpx
import pytest
from llmd_oke.access.objects import LONGEST_TEXT_BYTES, StoredFile, stored_file, stored_text
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


def text_of(uri: str, content: bytes) -> str:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=httpx.ByteStream(content)))
    return stored_text(uri, httpx.Client(transport=transport))


def test_a_packed_text_is_unpacked():
    assert text_of("https://example.com/Packages.gz", gzip.compress(b"Package: a\n")) == "Package: a\n"
    assert text_of("https://example.com/Packages", b"Package: a\n") == "Package: a\n"


@pytest.mark.parametrize("uri", ["https://example.com/Packages.gz", "https://example.com/Packages"])
def test_a_text_that_is_too_long_is_not_read_to_its_end(uri: str):
    content = bytes(LONGEST_TEXT_BYTES + 1)
    with pytest.raises(OciError, match="is longer than"):
        text_of(uri, gzip.compress(content) if uri.endswith("gz") else content)


def test_what_is_not_packed_is_refused():
    with pytest.raises(OciError, match="can't be read"):
        text_of("https://example.com/Packages.gz", b"Package: a\n")
