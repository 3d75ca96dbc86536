"""Requests to a Gateway with TLS, over a loopback server with the certificate of the Gateway's host."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from certificates_for_tests import certificate, private_key
from llmd_bench.load import connections
from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.records import Failure, RequestRecord
from llmd_oke.cli import bench
from llmd_oke.operations import cluster_access
from llmd_oke.operations.cluster_access import ClusterAccess
from llmd_oke.planning import Plan
from raw_server import WHOLE, read_request, send, serving
from stack_files import model, plan

HOST = "llm.example.com"
IN_TIME = datetime.now(UTC) + timedelta(days=30)


class ApiServer:
    """An API server that has one Gateway, whose listener is at a port of this machine."""

    def __init__(self, port: int) -> None:
        listener = {"name": "secure", "port": port, "protocol": "HTTPS", "hostname": HOST}
        self._document = {"spec": {"listeners": [listener]}, "status": {"addresses": [{"value": "127.0.0.1"}]}}

    def get(self, *_: object, **__: object) -> "ApiServer":
        return self

    def to_dict(self) -> dict[str, Any]:
        return self._document


class Door:
    """The TLS side of a Gateway: its certificate, the names that clients asked for (SNI), and what they sent."""

    def __init__(self, folder: Path, host: str, end: datetime) -> None:
        key = private_key()
        self.authority = folder / "authority.pem"
        self.authority.write_text(certificate(key, host, end).chain)
        (folder / "key.pem").write_text(key.pem)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.authority, folder / "key.pem")
        self.tls.sni_callback = lambda _socket, name, _context: self.names.append(name)
        self.names: list[str | None] = []
        self.requests: list[str] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append((await read_request(reader)).decode().lower())
        writer.write(WHOLE)
        await writer.drain()


@pytest.fixture(name="stack")
def stack_fixture(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A model behind a Gateway, whose name leads to this machine."""

    async def here(_: object) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(connections, "resolve", here)
    monkeypatch.setattr(cluster_access, "is_reachable", lambda host, _port: host == HOST)
    monkeypatch.setenv(bench.TOKEN_VARIABLE, "secret-token")
    there = {"mode": "existing", "provider": "agentgateway", "name": "shared", "namespace": "gateways"}
    return plan(model(router={"mode": "gateway"}), gateway={**there, "uncheckedRequests": "accepted"})


async def sent(monkeypatch: pytest.MonkeyPatch, stack: Plan, door: Door, authority: Path | None) -> RequestRecord:
    """One request through the Gateway, as `bench --through-gateway --certificates` sends it."""
    access = ClusterAccess.__new__(ClusterAccess)
    async with serving(door.talk, ssl=door.tls) as server:
        port = int(server.base_url.rpartition(":")[2])
        monkeypatch.setattr(access, "_client", ApiServer(port), raising=False)
        options = bench.TargetOptions(certificates=authority, through_gateway=True)
        way = bench._gateway_way(options)(access, stack, stack.models[0])
        target = CompletionsTarget(way.url, "m", dict(way.headers), way.verify)
        (record,) = await send(target)
    return record


async def test_a_benchmark_calls_the_gateway_by_its_host_name_over_verified_tls(monkeypatch, stack, tmp_path):
    door = Door(tmp_path, HOST, IN_TIME)
    record = await sent(monkeypatch, stack, door, door.authority)
    assert record.succeeded
    assert door.names == [HOST]
    assert f"host: {HOST}:" in door.requests[0]
    assert "authorization: bearer secret-token" in door.requests[0]


@pytest.mark.parametrize(
    ("host", "end", "given", "words"),
    [
        (HOST, datetime.now(UTC) - timedelta(days=1), True, "certificate has expired"),
        (HOST, datetime.now(UTC) + timedelta(days=400), True, "certificate is not yet valid"),
        ("other.example.com", IN_TIME, True, "certificate is not valid for 'llm.example.com'"),
        (HOST, IN_TIME, False, "self-signed certificate"),
    ],
    ids=["expired", "not yet valid", "another host", "an authority that was not given"],
)
async def test_an_unusable_certificate_is_reported_with_an_explanation(
    monkeypatch, stack, tmp_path, host, end, given, words
):
    door = Door(tmp_path, host, end)
    record = await sent(monkeypatch, stack, door, door.authority if given else None)
    assert (record.failure, door.requests) == (Failure.TLS, [])
    assert record.error is not None
    assert record.error.startswith(f"the certificate of {HOST} is refused: ")
    assert words in record.error
