import asyncio
import itertools
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_base.errors import KitError
from llmd_bench.load import connections
from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.connections import AnswerReader, BadAnswer
from llmd_bench.load.records import Failure
from llmd_bench.load.workload import ConstantRate
from raw_server import DONE, HEAD, LAST, TOKEN, WHOLE, always, chunk, read_request, send, serving

PLAIN = b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\nRetry-After: 7\r\n\r\noverload!"


def read(*pieces: bytes) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    return reader, b"".join([reader.feed(piece) for piece in pieces])


def test_an_http_response_with_one_packet_for_each_chunk_is_parsed():
    reader, body = read(HEAD + chunk(TOKEN), chunk(TOKEN), chunk(DONE), LAST)
    assert (reader.status, body, reader.complete, reader.keep_alive) == (200, TOKEN + TOKEN + DONE, True, True)


@given(st.lists(st.integers(0, 300), max_size=10))
def test_http_responses_are_parsed_wherever_their_bytes_are_split(cuts):
    whole = HEAD + chunk(TOKEN) + chunk(TOKEN * 3) + chunk(DONE) + b"0\r\nserver-timing: x\r\n\r\n"
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    reader, body = read(*(whole[start:end] for start, end in itertools.pairwise(edges)))
    assert (body, reader.complete) == (TOKEN * 4 + DONE, True)


def test_a_response_with_a_content_length_is_complete_after_that_many_bytes():
    reader, body = read(PLAIN[:60], PLAIN[60:])
    assert (reader.status, body, reader.complete, reader.retry_after_s) == (503, b"overload!", True, 7.0)


def test_a_response_without_a_length_but_no_chunked_one_ends_with_the_connection():
    reader, body = read(b"HTTP/1.1 200 OK\r\n\r\n", b"abc")
    assert (body, reader.complete, reader.end(), reader.keep_alive) == (b"abc", False, True, False)
    chunked, _ = read(HEAD + chunk(TOKEN))
    assert not chunked.end()


def test_interim_http_responses_are_skipped():
    reader, body = read(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN)
    assert (reader.status, body) == (503, b"overload!")


def test_a_date_in_retry_after_is_converted_to_seconds():
    dated, _ = read(PLAIN.replace(b"7\r\n", b"Fri, 31 Dec 1999 23:59:59 GMT\r\n", 1))
    assert dated.retry_after_s == 0


def test_a_connection_that_the_server_asks_to_close_is_not_reused():
    reader, _ = read(PLAIN.replace(b"Retry-After: 7", b"Connection: close"))
    assert not reader.keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 ??? OK\r\n\r\n",
        HEAD + b"xyz\r\nabc\r\n",
        HEAD + b"3\r\nabcdef\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70000,
    ],
)
def test_bytes_that_are_not_http_are_refused(data):
    with pytest.raises(BadAnswer):
        read(data)


@pytest.mark.parametrize(("longest_idle_s", "made"), [(connections.LONGEST_IDLE_S, 1), (0.0, 5)])
async def test_http_requests_reuse_a_connection_unless_it_was_idle_for_long(monkeypatch, longest_idle_s, made):
    monkeypatch.setattr(connections, "LONGEST_IDLE_S", longest_idle_s)
    ports = []

    async def talk(reader, writer):
        ports.append(writer.get_extra_info("peername")[1])
        await always(WHOLE)(reader, writer)

    async with serving(talk) as target:
        records = await send(target, 5)
    assert [record.failure for record in records] == [None] * 5
    assert len(ports) == made


@pytest.mark.parametrize("wait", ["30", "2.5"])
async def test_an_http_429_response_is_recorded_with_its_retry_after_in_seconds(wait):
    answer = f"HTTP/1.1 429 Slow\r\nretry-after: {wait}\r\ncontent-length: 4\r\n\r\nbusy".encode()
    async with serving(always(answer)) as target:
        (record,) = await send(target)
    assert (record.failure, record.status, record.error) == (Failure.STATUS, 429, "HTTP 429: busy")
    assert record.retry_after_s == (30 if wait == "30" else None)


@pytest.mark.parametrize(
    ("answer", "close", "failure", "events", "said"),
    [
        (HEAD + chunk(TOKEN) + chunk(TOKEN), True, Failure.CUT, 2, "after 2 events"),
        (HEAD + chunk(TOKEN) + LAST, False, Failure.CUT, 1, ""),
        (b"", True, Failure.CONNECTION, 0, ""),
        (b"SSH-2.0-OpenSSH_9.6\r\n", False, Failure.CONNECTION, 0, "not HTTP"),
    ],
    ids=["stopped half way", "without its end mark", "closed before it", "not HTTP"],
)
async def test_an_incomplete_answer_is_a_failure_of_its_own_kind(answer, close, failure, events, said):
    async with serving(always(answer, close=close)) as target:
        (record,) = await send(target)
    assert (record.failure, len(record.event_times_s)) == (failure, events)
    assert said in record.error


async def test_a_host_name_that_does_not_resolve_is_reported(monkeypatch):
    async def fail(_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(connections, "resolve", fail)
    (record,) = await send(CompletionsTarget("http://router.example", "m"))
    assert record.failure is Failure.ADDRESS
    assert record.error == "router.example can't be resolved: Name or service not known"


@pytest.mark.parametrize("url", ["10.0.0.7:8000", "ftp://10.0.0.7", "http://", "http://host:port"])
async def test_an_invalid_url_is_refused_before_anything_is_sent(url):
    with pytest.raises(KitError, match="no URL"):
        await send(CompletionsTarget(url, "m"))


async def test_a_server_without_tls_is_a_tls_failure():
    async def talk(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(talk) as target:
        (record,) = await send(CompletionsTarget(target.base_url.replace("http", "https"), "m"))
    assert record.failure is Failure.TLS


async def test_a_server_restart_under_load_fails_only_requests_in_flight():
    arrived = asyncio.Semaphore(0)

    async def talk(reader, writer):
        await read_request(reader)
        writer.write(HEAD + chunk(TOKEN))
        arrived.release()
        await asyncio.Event().wait()

    async with serving(talk) as target:
        sending = asyncio.create_task(send(target, 4, ConstantRate(1000)))
        for _ in range(4):
            await arrived.acquire()
    lost = await sending
    async with await asyncio.start_server(always(WHOLE), "127.0.0.1", int(target.base_url.rsplit(":", 1)[1])):
        (record,) = await send(target)
    assert {item.failure for item in lost} <= {Failure.CUT, Failure.CONNECTION}
    assert len(lost) == 4
    assert record.succeeded


async def test_a_request_without_a_response_ends_after_the_request_timeout():
    async def talk(reader, _):
        await read_request(reader)
        await asyncio.Event().wait()

    async with serving(talk) as target:
        records = await send(target, 2, request_timeout_s=0.05)
    assert [record.failure for record in records] == [Failure.TIMEOUT] * 2
