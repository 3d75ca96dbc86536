"""The passport of a deployment."""

import json

from llmd_bench.passport import (
    ColdStart,
    NodeAcceptance,
    Passport,
    RunningImage,
    accuracy,
    markdown,
    usd_per_million_output_tokens,
    write_passport,
)
from test_bench_evals import result

CHECK = {"name": "failures", "bound": "at most", "limit": 0, "value": 0, "units": "requests", "passed": True}


def passport(**changes):
    values = {
        "stack": "prod",
        "model": "gpt-oss-120b",
        "config_hash": "0123456789abcdef",
        "release": "llm-d-0.7.0",
        "topology": "8p-tp1-4d-tp2",
        "copies": 4,
        "gpus": 64,
        "gpus_reserved": 64,
        "price_usd_per_hour": 384.0,
        "price_includes": "list price of the GPU pools",
        "images": {
            "decode/vllm": RunningImage(asked="ghcr.io/a/vllm:v1", tag="v1", locked=None, digests=("sha256:1",))
        },
        "restarts": {"decode/vllm": 2},
        "basis": "calibrated",
        "simulated": ("vLLM",),
        "smoke_passed": True,
        "checks": [CHECK],
        "load": {"requests": 64},
        "performance": {"output_tokens_per_s": 1000.0},
        "remote_prefill": {"share": 1.0, "failed_prefills": 3},
        "accuracy": accuracy(result("1" * 76 + "0" * 4)),
        "usd_per_million_output_tokens": 106.67,
        "cold_start": ColdStart(applied="a", ready="b", first_token="c", ready_s=90.0, first_token_s=101.0),
        "created": "2026-03-01T00:00:00+00:00",
    }
    return Passport(**{**values, **changes})


def test_a_deployments_passport_lists_topology_image_accuracy_and_price():
    text = markdown(passport())
    for told in (
        "4 x 8p-tp1-4d-tp2",
        "sha256:1",
        "calibrated; simulated: vLLM",
        "100.0% of uncached prompts; 3 prefills failed",
        "decode/vllm 2",
        "95.0%",
        "101 s",
        "106.67 USD",
    ):
        assert told in text


def test_a_deployments_passport_lists_overrides_and_own_catalogue_files_with_digests():
    text = markdown(passport(override={"router": "llm-d-0.6.0", "quickReduce": "INT4"}))
    assert "| instead of the release's own | router llm-d-0.6.0; quickReduce INT4 |" in text
    assert "instead of" not in markdown(passport())
    text = markdown(passport(project_values={"values/models/mine.yaml": "0123456789ab" + "c" * 52}))
    assert "| of the project's own | `values/models/mine.yaml` (0123456789ab) |" in text


def test_a_deployments_passport_marks_unknown_facts_and_a_failed_benchmark():
    text = markdown(passport(remote_prefill=None, accuracy=None, cold_start=None))
    assert "not evaluated in this configuration" in text
    assert "| cold start | not seen: the servers did not start together |" in text
    text = markdown(passport(smoke_passed=False, checks=[{**CHECK, "passed": False, "value": None}]))
    assert "**failed**" in text
    assert "| failures | unknown | at most 0 | no |" in text


def test_a_deployments_passport_is_also_written_as_json(tmp_path):
    path = write_passport(passport(), tmp_path)
    assert json.loads(path.with_suffix(".json").read_text())["accuracy"]["score"] == 0.95


def test_the_price_of_a_million_tokens_follows_from_token_rate_and_hourly_price():
    """360 dollars an hour at 100,000 tokens a second: one dollar for a million."""
    assert usd_per_million_output_tokens(360.0, {"output_tokens_per_s": 100_000.0}) == 1.0
    assert usd_per_million_output_tokens(360.0, {"output_tokens_per_s": 0.0}) is None


def test_a_deployments_passport_lists_nodes_with_their_acceptance():
    node = {"verdict": "passed", "date": "2026-11-23T02:00:00Z", "image": "vllm:1"}
    nodes = {"a": NodeAcceptance(**node), "b": NodeAcceptance(**{**node, "verdict": "failed"}), "c": None}
    text = markdown(passport(nodes=nodes))
    assert "1 of 3 passed, the oldest result of 2026-11-23; **failed**: b" in text
    assert "acceptance of nodes" not in markdown(passport())
