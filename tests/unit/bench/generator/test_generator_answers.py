import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_oke.bench.generator.answers import AnswerReader, BadAnswer
from raw_server import DONE, HEAD, LAST, TOKEN, chunk

PLAIN = b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\nRetry-After: 7\r\n\r\noverload!"


def read(*pieces: bytes) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    return reader, b"".join([reader.feed(piece) for piece in pieces])


def test_a_packet_for_each_chunk_is_read():
    reader, body = read(HEAD + chunk(TOKEN), chunk(TOKEN), chunk(DONE), LAST)
    assert (reader.status, body, reader.complete, reader.keep_alive) == (200, TOKEN + TOKEN + DONE, True, True)


@given(st.lists(st.integers(0, 300), max_size=10))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts):
    whole = HEAD + chunk(TOKEN) + chunk(TOKEN * 3) + chunk(DONE) + b"0\r\nserver-timing: x\r\n\r\n"
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    reader, body = read(*(whole[start:end] for start, end in itertools.pairwise(edges)))
    assert (body, reader.complete) == (TOKEN * 4 + DONE, True)


def test_an_answer_of_known_length_ends_with_it():
    reader, body = read(PLAIN[:60], PLAIN[60:])
    assert (reader.status, body, reader.complete, reader.retry_after_s) == (503, b"overload!", True, 7.0)


def test_an_answer_of_unknown_length_ends_with_the_connection():
    reader, body = read(b"HTTP/1.1 200 OK\r\n\r\n", b"abc")
    assert (body, reader.complete, reader.end(), reader.keep_alive) == (b"abc", False, True, False)


def test_a_chunked_answer_does_not_end_with_the_connection():
    reader, _ = read(HEAD + chunk(TOKEN))
    assert not reader.end()


def test_interim_answers_are_skipped():
    reader, body = read(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN)
    assert (reader.status, body) == (503, b"overload!")


def test_a_date_in_retry_after_is_a_wait():
    reader, _ = read(PLAIN.replace(b"7\r\n", b"Fri, 31 Dec 1999 23:59:59 GMT\r\n", 1))
    assert reader.retry_after_s == 0


def test_the_server_may_ask_to_close_the_connection():
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
def test_what_is_not_http_is_refused(data):
    with pytest.raises(BadAnswer):
        read(data)
