"""Workloads: classes with weights, and traces."""

import json

import pytest
from llmd_base.errors import KitError
from llmd_tuner.search import search
from llmd_tuner.workload import MAX_CLASSES, parse, read_trace
from tuning_for_tests import question


def test_the_workload_4096_256_is_parsed_into_prompt_output_and_context_lengths():
    load = parse("4096/256")
    assert (load.input_tokens, load.output_tokens, load.context_tokens) == (4096, 256, 4224)
    assert str(load) == "4096/256"


def test_the_mean_context_weights_request_classes_by_their_decode_steps():
    load = parse("1:1000/100,1:2000/300")
    assert load.input_tokens == 1500
    assert load.output_tokens == 200
    assert load.context_tokens == pytest.approx((100 * 1050 + 300 * 2150) / 400)


def test_variation_of_prompt_lengths_makes_prefill_wait_longer():
    even = search(question(workload="4096/256")).best()
    mixed = search(question(workload="0.5:7168/256,0.5:1024/256")).best()
    assert even is not None
    assert mixed is not None
    assert mixed.wait_s > even.wait_s


@pytest.mark.parametrize("text", ["", "4096", "4096/0", "-1:4096/256", "0:4096/256", "a/b"])
def test_invalid_workloads_are_refused_with_an_example(text):
    with pytest.raises(KitError, match="no workload") as refused:
        parse(text)
    assert "4096/256" in (refused.value.remedy or "")


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_traces_lengths_and_rate_are_read(tmp_path, suffix):
    path = tmp_path / f"trace.{suffix}"
    requests = [{"input_tokens": 100 * n, "output_tokens": 10, "at_s": (n - 1) / 4} for n in range(1, 101)]
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, requests)))
    else:
        lines = [",".join(requests[0]), *(",".join(map(str, item.values())) for item in requests)]
        path.write_text("\n".join(lines))
    load = read_trace(path)
    assert len(load.classes) == MAX_CLASSES
    assert load.input_tokens == pytest.approx(5050)
    assert load.requests_per_s == pytest.approx(4)


def test_malformed_lines_of_a_trace_are_listed_by_number_and_an_empty_one_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = ['{"input_tokens": 5, "output_tokens": 5}', "nonsense", "", '{"input_tokens": 5}']
    path.write_text("\n".join([*lines, '{"input_tokens": 0, "output_tokens": 1}']))
    with pytest.raises(KitError) as refused:
        read_trace(path)
    lines = refused.value.message.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{path}:2", f"{path}:4", f"{path}:5"]
    assert "there is no output_tokens" in lines[1]
    (tmp_path / "trace.csv").write_text("input_tokens,output_tokens\n")
    with pytest.raises(KitError, match="no requests"):
        read_trace(tmp_path / "trace.csv")
