import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_bench.load.completions import EventStream

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


def completion(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}], "usage": None}).encode() + b"\n\n"


def read(*pieces: bytes, api="completions") -> EventStream:
    stream = EventStream(api)
    for now_s, piece in enumerate(pieces):
        stream.feed(piece, float(now_s))
    stream.end()
    return stream


def test_every_stream_event_with_output_is_timed_even_with_an_empty_text():
    stream = read(completion("a"), completion(""), USAGE, DONE)
    assert stream.event_times_s == [0.0, 1.0]
    assert (stream.input_tokens, stream.output_tokens, stream.finished, stream.error) == (12, 2, True, None)


def test_quoted_keys_in_generated_text_are_not_taken_for_json_keys():
    stream = read(completion('{"error": "no"} "usage": {"completion_tokens": 9} [DONE]'))
    assert (stream.error, stream.output_tokens, stream.finished) == (None, None, False)
    assert len(stream.event_times_s) == 1


def test_an_error_event_or_an_invalid_one_in_the_stream_is_recorded():
    assert "out of memory" in read(b'data: {"error":{"message":"out of memory \\"text\\""}}\n\n').error
    assert read(b"data: <html>\n\n").error == "not JSON: <html>"


def test_token_counts_may_be_in_the_last_event_with_output():
    last = b'data: {"choices":[{"text":"b"}],"usage":{"prompt_tokens":3,"completion_tokens":7}}\n\n'
    assert read(completion("a"), last, DONE).output_tokens == 7


@pytest.mark.parametrize(
    "line", [b": keep-alive\n\n", b"event: ping\n\n", b"\r\n", b"data: {}\r\n\r\n", b"data: 3\n\n"]
)
def test_stream_lines_without_content_are_skipped(line):
    stream = read(line, DONE)
    assert (stream.event_times_s, stream.error, stream.finished) == ([], None, True)


def test_the_role_event_of_a_chat_is_no_output():
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    token = b'data: {"choices":[{"delta":{"reasoning_content":"x"}}]}\n\n'
    assert read(role, token, DONE, api="chat").event_times_s == [1.0]


@given(st.lists(st.integers(0, 400), max_size=8))
def test_stream_events_are_parsed_wherever_their_bytes_are_split(cuts):
    whole = completion("a") + completion('say "text"') + USAGE + DONE
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    stream = read(*(whole[start:end] for start, end in itertools.pairwise(edges)))
    assert len(stream.event_times_s) == 2
    assert (stream.output_tokens, stream.finished, stream.error) == (2, True, None)
