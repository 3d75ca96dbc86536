import json
from functools import partial

import pytest
from llmd_base.errors import InvalidStack, KitError
from llmd_bench.load.notation import read_length, read_shapes, read_trace, read_trim
from llmd_bench.load.records import Trim
from llmd_bench.load.workload import ClosedLoop, ConstantRate, Fixed, LogNormal, Normal, PoissonRate, TraceEntry


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (partial(read_shapes, seed=3), "closed:8,16", [ClosedLoop(8), ClosedLoop(16)]),
        (partial(read_shapes, seed=3), "constant:45", [ConstantRate(45.0)]),
        (partial(read_shapes, seed=3), "poisson:0.5", [PoissonRate(0.5, seed=3)]),
        (read_length, "4096", Fixed(4096)),
        (read_length, "normal:100,20", Normal(100, 20)),
        (read_length, "lognormal:100,50", LogNormal(100, 50)),
        (read_trim, "none", Trim()),
        (read_trim, "busy", Trim(busy=True)),
        (read_trim, "0.2", Trim(head_share=0.2, tail_share=0.2)),
    ],
)
def test_each_notation_of_loads_lengths_and_trimming_is_parsed(read, text, expected):
    assert read(text) == expected


def test_a_load_shape_that_names_a_trace_file_has_the_requests_of_that_file(tmp_path):
    (tmp_path / "t.csv").write_text("time_s\n0\n1\n")
    (trace,) = read_shapes(f"trace:{tmp_path}/t.csv")
    assert (len(trace.entries), str(trace)) == (2, "trace:t.csv")


SHAPES = ("poisson", "poisson:", "steady:4", "closed:a", "constant:-1", "constant:inf", "trace:")
LENGTHS = ("", "many", "normal:3", "normal:1,2,3", "4.5", "gamma:1,2")


@pytest.mark.parametrize(
    ("read", "text", "examples"),
    [
        *((read_shapes, text, "closed:USERS") for text in SHAPES),
        *((read_length, text, "lognormal:MEAN") for text in LENGTHS),
        *((read_trim, text, "none, busy, or a share") for text in ("0.5", "most", "")),
    ],
)
def test_an_invalid_notation_of_loads_lengths_or_trimming_is_refused_with_examples(read, text, examples):
    with pytest.raises(KitError, match=examples):
        read(text)


def written(tmp_path, text, name="trace.jsonl"):
    path = tmp_path / name
    path.write_text(text)
    return path


def lines(*rows) -> str:
    return "\n".join(map(json.dumps, rows))


def test_trace_times_are_relative_to_the_first_request(tmp_path):
    path = written(tmp_path, lines({"time_s": 12.5, "input_tokens": 9}, {"time_s": 10, "output_tokens": 4}))
    assert read_trace(path).entries == (TraceEntry(0.0, None, 4), TraceEntry(2.5, 9, None))


def test_a_csv_trace_is_read_like_json_lines(tmp_path):
    path = written(tmp_path, "time_s,input_tokens,output_tokens\n0,100,20\n1.5,,30\n", "t.csv")
    assert read_trace(path).entries == (TraceEntry(0.0, 100, 20), TraceEntry(1.5, None, 30))


def test_times_in_mooncakes_traces_are_milliseconds(tmp_path):
    row = {"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
    path = written(tmp_path, lines({**row, "timestamp": 0}, row))
    assert read_trace(path).entries[1] == TraceEntry(1.0, 6758, 500)


def test_times_in_azures_traces_are_dates(tmp_path):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    text += "2023-11-16 18:15:50.9951690,396,109\n"
    second = read_trace(written(tmp_path, text, "azure.csv")).entries[1]
    assert second.at_s == pytest.approx(4.314579, abs=1e-5)
    assert (second.input_tokens, second.output_tokens) == (396, 109)


def test_all_invalid_lines_of_a_trace_are_reported(tmp_path):
    path = written(
        tmp_path,
        '{"time_s": 0}\n{"time_s": "soon"}\nnothing\n{"input_tokens": 3}\n{"time_s":1,"input_tokens":0}\n'
        + "[" * 100_000,
    )
    with pytest.raises(InvalidStack) as refused:
        read_trace(path)
    assert [(problem.line, problem.why) for problem in refused.value.problems] == [
        (2, "time_s is no number"),
        (3, "it is no JSON object"),
        (4, "it has no time"),
        (5, "input_tokens is 0, at least 1 token is needed"),
        (6, "it is no JSON object"),
    ]


def test_an_empty_trace_is_refused(tmp_path):
    with pytest.raises(InvalidStack, match="it is empty") as refused:
        read_trace(written(tmp_path, ""))
    assert refused.value.verdict == "the load can't be sent"


def test_a_missing_trace_file_is_reported(tmp_path):
    with pytest.raises(KitError, match="can't be read"):
        read_trace(tmp_path / "none.jsonl")
