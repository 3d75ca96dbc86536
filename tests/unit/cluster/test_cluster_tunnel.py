import asyncio
import base64
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from llmd_base.errors import KitError
from llmd_oke.cluster import oke_cluster
from llmd_oke.config.cluster import KubeconfigAccess


def certificate(name: str) -> tuple[bytes, bytes]:
    """A certificate that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return made.public_bytes(serialization.Encoding.PEM), private


@pytest.fixture(scope="module")
def own() -> tuple[bytes, bytes]:
    return certificate("10.0.0.6")


@asynccontextmanager
async def api_server(folder: Path, pair: tuple[bytes, bytes], port: int = 0) -> AsyncGenerator[int]:
    """Serve TLS at a port of this machine."""
    (folder / "both.pem").write_bytes(b"".join(pair))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port, ssl=context) as server:
        yield int(server.sockets[0].getsockname()[1])


def access(pair: tuple[bytes, bytes]) -> KubeconfigAccess:
    return KubeconfigAccess("https://10.0.0.6:6443", base64.b64encode(pair[0]).decode(), {})


async def test_an_api_server_that_answers_needs_no_wait_for_a_tunnel(tmp_path: Path, own: tuple[bytes, bytes]):
    async with api_server(tmp_path, own) as port:
        await oke_cluster.wait_until_reached(f"https://127.0.0.1:{port}", access(own), 0)


async def test_an_api_server_is_waited_for_until_its_tunnel_opens(
    tmp_path: Path, own: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
):
    waiting = asyncio.Event()
    monkeypatch.setattr(oke_cluster.pulumi.log, "info", lambda _: waiting.set())
    monkeypatch.setattr(oke_cluster, "POLL_S", 0.01)
    async with api_server(tmp_path, own) as port:
        pass
    reached = asyncio.create_task(oke_cluster.wait_until_reached(f"https://127.0.0.1:{port}", access(own), 20))
    await asyncio.wait_for(waiting.wait(), 20)
    async with api_server(tmp_path, own, port):
        await reached


async def test_a_missing_tunnel_is_reported_with_the_commands_that_open_one(tmp_path: Path, own: tuple[bytes, bytes]):
    async with api_server(tmp_path, own) as port:
        pass
    with pytest.raises(KitError, match=r"at https://127\.0\.0\.1:.*: connection refused\.") as late:
        await oke_cluster.wait_until_reached(f"https://127.0.0.1:{port}", access(own), 0)
    assert "up --tunnel" in (late.value.remedy or "")


@pytest.mark.parametrize(("answer", "cause"), [(b"", "no answer"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "TLS failed")])
async def test_a_tunnel_behind_which_nothing_speaks_tls_is_reported_with_the_cause(
    own: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch, answer: bytes, cause: str
):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    monkeypatch.setattr(oke_cluster, "ANSWER_S", 0.2)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(KitError, match=rf"does not answer at .* after 0 s: .*{cause}"):
            await oke_cluster.wait_until_reached(f"https://127.0.0.1:{port}", access(own), 0)


async def test_a_tunnel_to_another_cluster_is_reported_at_once(tmp_path: Path, own: tuple[bytes, bytes]):
    async with api_server(tmp_path, certificate("10.0.0.6")) as port:
        with pytest.raises(KitError, match="is not this cluster's API server"):
            await oke_cluster.wait_until_reached(f"https://127.0.0.1:{port}", access(own), 20)


@pytest.mark.parametrize("authority", ["", "####", base64.b64encode(b"no certificate").decode()])
async def test_a_cluster_without_a_certificate_authority_is_an_error_without_a_wait(authority: str):
    unknown = KubeconfigAccess("https://10.0.0.6:6443", authority, {})
    with pytest.raises(KitError, match="no certificate authority"):
        await oke_cluster.wait_until_reached("https://127.0.0.1:1", unknown, 20)
