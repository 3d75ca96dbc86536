"""The simulated vLLM behind the real routing sidecar, which speaks the nixlv2 protocol with it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rehearsal

PROMPT_TOKENS = 3000 // 4
KEY_VALUE_BYTES = 73_728


def namespaces():
    """The command that makes a world, or the reason why there can't be one."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    made = ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        done = subprocess.run([*made, "true"], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare on this machine")
    if done.returncode:
        pytest.skip(f"no namespaces on this machine: {done.stderr.strip()}")
    return made


@pytest.fixture(name="seen", scope="module")
def seen_fixture(tmp_path_factory):
    sidecar = Path(os.environ.get("LLMD_OKE_PROGRAMS", "/nonexistent")) / "pd-sidecar"
    if not sidecar.is_file():
        pytest.skip("no pd-sidecar (looked in LLMD_OKE_PROGRAMS)")
    if shutil.which("ip") is None:
        pytest.skip("no ip (iproute2) on this machine")
    log = tmp_path_factory.mktemp("pd") / "world.log"
    script = Path(__file__).with_name("pd_world.py")
    argv = [*namespaces(), sys.executable, str(script), str(sidecar), str(log)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + log.read_text()
    return json.loads(done.stdout)


def test_a_streamed_answer_comes_through_prefill_and_decode(seen):
    """The client sees one answer: 20 tokens and the usage of the whole prompt."""
    *events, done, _ = seen["streamed"]["text"].split("\n\n")
    decoded = [json.loads(event.removeprefix("data: ")) for event in events]
    assert done == "data: [DONE]"
    assert len([event for event in decoded if event["choices"]]) == 20
    assert decoded[-1]["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert decoded[-1]["usage"]["completion_tokens"] == 20


def test_the_prompt_is_computed_on_the_prefill_server_only(seen):
    """One token there; on the decode server the prompt came over NIXL."""
    prefill, decode = seen["streamed"]["prefill"], seen["streamed"]["decode"]
    assert prefill["vllm:generation_tokens_total"] == 1
    assert decode["vllm:generation_tokens_total"] == 20
    assert decode["vllm:external_prefix_cache_hits_total"] == PROMPT_TOKENS
    assert decode["vllm:nixl_bytes_transferred_sum"] == PROMPT_TOKENS * KEY_VALUE_BYTES
    assert decode["vllm:nixl_xfer_time_seconds_count"] == 1


def test_the_prefill_server_holds_nothing_after_the_transfer(seen):
    """Its blocks were released when they had been pulled."""
    assert seen["streamed"]["prefill"]["vllm:kv_cache_usage_perc"] == 0.0


def test_the_first_transfer_pays_for_the_handshake_in_model_time(seen):
    """5 s of model time, on the wall as in the metrics; the second request is far quicker."""
    first, second = seen["streamed"], seen["chat"]
    assert 5.0 <= first["decode"]["vllm:time_to_first_token_seconds_sum"] < 8.0
    assert first["model_s"] > 5.0
    assert second["model_s"] < 4.0


def test_a_chat_is_handed_over_too(seen):
    """Not streaming; the sidecar restores the client's own limit."""
    body = json.loads(seen["chat"]["text"])
    assert body["usage"]["completion_tokens"] == 5
    assert seen["chat"]["decode"]["vllm:nixl_xfer_time_seconds_count"] == 2


def test_without_a_prefiller_the_decode_server_does_it_all(seen):
    """No x-prefiller-host-port header: nothing is transferred."""
    assert seen["aggregated"]["status"] == 200
    before, after = seen["chat"], seen["aggregated"]
    for name in ("vllm:nixl_xfer_time_seconds_count", "vllm:external_prefix_cache_hits_total"):
        assert after["decode"][name] == before["decode"][name]
    assert after["prefill"]["vllm:generation_tokens_total"] == before["prefill"]["vllm:generation_tokens_total"]


def test_a_prompt_that_prefill_refuses_is_refused_to_the_client(seen):
    """The sidecar passes a 400 on."""
    assert seen["too_long"]["status"] == 400
    assert "maximum context length" in json.loads(seen["too_long"]["text"])["error"]["message"]
    assert seen["too_long"]["decode"]["vllm:num_requests_running"] == 0


def test_a_prefiller_that_is_not_there_leaves_the_decode_server_to_do_it_all(seen):
    """The sidecar falls back silently; only the metrics show it."""
    assert seen["no_prefiller"]["status"] == 200
    before, after = seen["too_long"]["decode"], seen["no_prefiller"]["decode"]
    assert after["vllm:nixl_xfer_time_seconds_count"] == before["vllm:nixl_xfer_time_seconds_count"]
