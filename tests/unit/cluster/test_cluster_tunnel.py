import asyncio
import base64
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from certificates_for_tests import certificate, private_key
from llmd_base.errors import KitError
from llmd_oke.cluster import oke_cluster
from llmd_oke.config.cluster import KubeconfigAccess

Pair = tuple[str, str]
"""A certificate that is its own authority, and its key."""


def pair() -> Pair:
    key = private_key()
    return certificate(key, "10.0.0.6").chain, key.pem


@pytest.fixture(scope="module")
def own() -> Pair:
    return pair()


@asynccontextmanager
async def api_server(folder: Path, pair: Pair, port: int = 0) -> AsyncGenerator[int]:
    """Serve TLS at a port of this machine."""
    (folder / "both.pem").write_text("".join(pair))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port, ssl=context) as server:
        yield int(server.sockets[0].getsockname()[1])


def access(pair: Pair) -> KubeconfigAccess:
    return KubeconfigAccess("https://10.0.0.6:6443", base64.b64encode(pair[0].encode()).decode(), {})


async def test_an_api_server_that_answers_needs_no_wait_for_a_tunnel(tmp_path: Path, own: Pair):
    async with api_server(tmp_path, own) as port:
        await oke_cluster.wait_until_reached(f"https://127.0.0.1:{port}", access(own), 0)


async def test_an_api_server_is_waited_for_until_its_tunnel_opens(
    tmp_path: Path, own: Pair, monkeypatch: pytest.MonkeyPatch
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


async def test_a_missing_tunnel_is_reported_with_the_commands_that_open_one(tmp_path: Path, own: Pair):
    async with api_server(tmp_path, own) as port:
        pass
    with pytest.raises(KitError, match=r"at https://127\.0\.0\.1:.*: connection refused\.") as late:
        await oke_cluster.wait_until_reached(f"https://127.0.0.1:{port}", access(own), 0)
    assert "up --tunnel" in (late.value.remedy or "")


@pytest.mark.parametrize(("answer", "cause"), [(b"", "no answer"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "TLS failed")])
async def test_a_tunnel_behind_which_nothing_speaks_tls_is_reported_with_the_cause(
    own: Pair, monkeypatch: pytest.MonkeyPatch, answer: bytes, cause: str
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


async def test_a_tunnel_to_another_cluster_is_reported_at_once(tmp_path: Path, own: Pair):
    async with api_server(tmp_path, pair()) as port:
        with pytest.raises(KitError, match="is not this cluster's API server"):
            await oke_cluster.wait_until_reached(f"https://127.0.0.1:{port}", access(own), 20)


@pytest.mark.parametrize("authority", ["", "####", base64.b64encode(b"no certificate").decode()])
async def test_a_cluster_without_a_certificate_authority_is_an_error_without_a_wait(authority: str):
    unknown = KubeconfigAccess("https://10.0.0.6:6443", authority, {})
    with pytest.raises(KitError, match="no certificate authority"):
        await oke_cluster.wait_until_reached("https://127.0.0.1:1", unknown, 20)
