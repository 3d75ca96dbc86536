import io
import json
from dataclasses import replace
from random import Random

import pytest
from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.bench.in_cluster import smoke_result
from llmd_oke.bench.in_cluster.smoke_result import (
    LARGEST_BYTES,
    LONGEST_WORDS_BYTES,
    failure_words,
    last_words,
    pack,
    unpack,
)
from llmd_oke.bench.reporting.report import build_report
from llmd_oke.bench.reporting.summary import summarize_result
from llmd_oke.bench.reporting.tables import render
from llmd_oke.bench.smoke.hygiene import TOO_SLOW
from llmd_oke.bench.smoke.smoke import SmokeResult, smoke
from llmd_oke.bench.smoke.thresholds import Thresholds
from llmd_oke.errors import KitError
from rich.console import Console
from smoke_requests import REQUEST

HOW = Circumstances()


@pytest.fixture
async def result(deployment) -> SmokeResult:
    plan = deployment.plan(
        thresholds=Thresholds(min_remote_prefill_share=0.95, max_ttft_p95_ms=1e-6), facts=REQUEST.facts
    )
    return await smoke(plan)


def shown(result: SmokeResult) -> str:
    text = io.StringIO()
    Console(file=text, width=120).print(render(result))
    return text.getvalue()


async def test_a_result_looks_the_same_after_its_journey(result):
    arrived = unpack(pack(REQUEST, HOW, result).result)
    assert shown(arrived) == shown(result)
    summary = summarize_result(arrived)
    there = summarize_result(result)
    assert {key: summary[key] for key in summary if key != "load"} == {
        key: there[key] for key in there if key != "load"
    }


async def test_a_report_is_built_of_it_as_of_the_result_itself(result):
    arrived = unpack(pack(REQUEST, HOW, result).result)
    assert build_report(arrived).results.request_performance == build_report(result).results.request_performance


async def test_summary_and_report_can_be_read_without_the_kit(result):
    texts = pack(REQUEST, HOW, result).texts
    assert json.loads(texts["summary.json"])["passed"] is False
    assert "version: '0.2'" in texts["report.yaml"]


async def test_what_is_too_large_goes_without_the_times_of_tokens(result):
    random = Random(1)  # noqa: S311 - noise
    times = tuple(sorted(random.random() for _ in range(3000)))
    large = replace(result, records=tuple(replace(result.records[0], index=i, event_times_s=times) for i in range(500)))
    large = replace(
        large, records=tuple(replace(r, event_times_s=[t * random.random() for t in times]) for r in large.records)
    )
    parcel = pack(REQUEST, HOW, large)
    arrived = unpack(parcel.result)
    assert len(parcel.result) <= LARGEST_BYTES
    assert [len(record.event_times_s) for record in arrived.records] == [2] * 500
    assert arrived.performance == result.performance
    assert "too large" in arrived.notes[-1]


def test_what_is_no_result_is_refused_in_words():
    with pytest.raises(KitError, match="can't be read"):
        unpack(b"nonsense")


async def test_last_words_say_which_threshold_was_missed_and_where_there_is_more(result):
    words = json.loads(last_words("gpt", result))
    assert words["failed"] == ["TTFT p95"]
    assert words["message"].startswith("gpt failed its smoke benchmark: TTFT p95")
    assert words["message"].endswith("llmd-oke smoke --fetch --stack mine")


async def test_last_words_say_that_the_machine_was_too_slow_where_that_is_why(result):
    slow = f"{TOO_SLOW}: 34% of its steps were late"
    assert slow in json.loads(last_words("gpt", replace(result, notes=(slow,))))["message"]


def test_last_words_are_never_longer_than_kubernetes_keeps():
    words = failure_words("gpt", KitError("ä" * 9000))
    assert len(words.encode()) <= LONGEST_WORDS_BYTES
    assert json.loads(words)["failed"] == ["no measurement"]
    assert smoke_result.LONGEST_WORDS_BYTES == 4096
