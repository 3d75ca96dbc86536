"""The simulated vLLM behind the real routing sidecar, which speaks the nixlv2 protocol with it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from llmd_bench.deployment import MetricsEndpoint, Reading, Snapshot
from llmd_bench.evidence import DecisionCounter, EvidenceSettings, Sent, prove_remote_prefill
from llmd_bench.queries import parse
from llmd_oke import catalogue
from llmd_rehearsal.programs import locate

pytestmark = pytest.mark.rehearsal

PROMPT_TOKENS = 3000 // 4
KEY_VALUE_BYTES = 73_728
BLOCK_TOKENS = 16


def namespaces():
    """The command that makes namespaces, or the reason why there can't be any."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        process = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare on this machine")
    if process.returncode:
        pytest.skip(f"no namespaces on this machine: {process.stderr.strip()}")
    return command


def sidecar_of(release):
    """The routing sidecar of a release; another version than the pinned one is named with it in LLMD_OKE_PROGRAMS."""
    folder, version = Path(os.environ.get("LLMD_OKE_PROGRAMS", "/nonexistent")), release.routing_sidecar.program.version
    named, program = folder / f"pd-sidecar-{version}", locate("pd-sidecar", version)
    if named.is_file():
        return named
    if program is None:
        pytest.skip(f"no pd-sidecar {version} (looked in LLMD_OKE_PROGRAMS, the cache and PATH)")
    return program.path


@pytest.fixture(name="release", scope="module", params=["llm-d-0.6.0", "llm-d-0.9.0"])
def release_fixture(request):
    return catalogue.release(request.param)


@pytest.fixture(name="seen", scope="module")
def seen_fixture(tmp_path_factory, release):
    sidecar = sidecar_of(release)
    if shutil.which("ip") is None:
        pytest.skip("no ip (iproute2) on this machine")
    log = tmp_path_factory.mktemp("pd") / "pods.log"
    script = Path(__file__).with_name("pd_pods.py")
    retries = [flag for flag in release.routing_sidecar.arguments if "retries" in flag]
    argv = [*namespaces(), sys.executable, str(script), str(sidecar), str(log), *retries]
    process = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr + log.read_text()
    return json.loads(process.stdout)


def test_a_streamed_answer_after_a_remote_prefill_has_all_tokens_and_the_usage(seen):
    """The client sees one answer: 20 tokens and the usage of the whole prompt."""
    *events, done, _ = seen["streamed"]["text"].split("\n\n")
    decoded = [json.loads(event.removeprefix("data: ")) for event in events]
    assert done == "data: [DONE]"
    assert len([event for event in decoded if event["choices"]]) == 20
    assert decoded[-1]["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert decoded[-1]["usage"]["completion_tokens"] == 20


def test_the_prompt_is_computed_only_on_the_prefill_server(seen):
    """One token there; on the decode server the prompt came over NIXL."""
    prefill, decode = seen["streamed"]["prefill"], seen["streamed"]["decode"]
    assert prefill["vllm:generation_tokens_total"] == 1
    assert decode["vllm:generation_tokens_total"] == 20
    assert decode["vllm:external_prefix_cache_hits_total"] == PROMPT_TOKENS
    blocks = -(-PROMPT_TOKENS // BLOCK_TOKENS)
    assert decode["vllm:nixl_bytes_transferred_sum"] == blocks * BLOCK_TOKENS * KEY_VALUE_BYTES
    assert decode["vllm:nixl_xfer_time_seconds_count"] == 1


def test_the_prefill_server_holds_no_kv_blocks_after_the_transfer(seen):
    assert seen["streamed"]["prefill"]["vllm:kv_cache_usage_perc"] == 0.0


def test_the_first_kv_transfer_takes_five_simulated_seconds_longer_for_the_handshake(seen):
    """5 s of model time, on the wall as in the metrics; the second request is far quicker."""
    first, second = seen["streamed"], seen["chat"]
    assert 5.0 <= first["decode"]["vllm:time_to_first_token_seconds_sum"] < 8.0
    assert first["model_s"] > 5.0
    assert second["model_s"] < 4.0


def test_a_chat_request_is_prefilled_remotely_too(seen):
    """Not streaming; the sidecar restores the client's own limit."""
    body = json.loads(seen["chat"]["text"])
    assert body["usage"]["completion_tokens"] == 5
    assert seen["chat"]["decode"]["vllm:nixl_xfer_time_seconds_count"] == 2


def test_without_the_header_for_a_prefill_server_the_decode_server_prefills_itself(seen):
    """No x-prefiller-host-port header: nothing is transferred."""
    assert seen["aggregated"]["status"] == 200
    before, after = seen["chat"], seen["aggregated"]
    for name in ("vllm:nixl_xfer_time_seconds_count", "vllm:external_prefix_cache_hits_total"):
        assert after["decode"][name] == before["decode"][name]
    assert after["prefill"]["vllm:generation_tokens_total"] == before["prefill"]["vllm:generation_tokens_total"]


def test_a_prompt_that_the_prefill_server_rejects_is_rejected_to_the_client(seen):
    """The sidecar passes a 400 on."""
    assert seen["too_long"]["status"] == 400
    assert "maximum context length" in json.loads(seen["too_long"]["text"])["error"]["message"]
    assert seen["too_long"]["decode"]["vllm:num_requests_running"] == 0


def test_a_failed_prefill_is_repeated_by_the_decode_server_or_returned_as_an_error(seen, release):
    """Older sidecars fall back silently; later ones hand the error on, and 502 where nothing answers."""
    prefilled, failing, unreachable, local = ([200] * 3,) * 4
    if release.order >= 8:
        failing, unreachable = [500] * 3, [502] * 3
    assert seen["counted"]["statuses"] == [*prefilled, *failing, *unreachable, *local]


def test_every_failed_remote_prefill_is_counted_whatever_the_sidecar_does_next(seen):
    """Twelve requests, of which a picker would have nine prefilled remotely; six of these could not be."""

    def snapshot(counted, decisions):
        picker = f'decisions{{decision_type="prefill-decode"}} {decisions}\n'
        texts = {"router": picker, **counted}
        return Snapshot(tuple(reading(ROLES.get(name, name), name, text) for name, text in texts.items()))

    counted = seen["counted"]
    answered = counted["statuses"].count(200)
    sent = Sent(requests=answered, prompt_tokens=answered * PROMPT_TOKENS, attempted=12)
    settings = EvidenceSettings(DecisionCounter(("decisions",), "decision_type", ("prefill-decode",)), 2)
    proof = prove_remote_prefill(snapshot(counted["before"], 0), snapshot(counted["after"], 9), sent, settings)
    assert proof.failed_prefills == 6


ROLES = {"failing": "prefill"}


def reading(role, pod, text):
    return Reading(MetricsEndpoint(role, pod, f"http://{pod}/metrics"), parse(text))


def test_no_kv_cache_is_transferred_if_the_prefill_server_is_unreachable(seen, release):
    """The sidecar falls back silently; only the metrics show it. Later ones don't."""
    assert seen["no_prefiller"]["status"] == (502 if release.order >= 8 else 200)
    before, after = seen["too_long"]["decode"], seen["no_prefiller"]["decode"]
    assert after["vllm:nixl_xfer_time_seconds_count"] == before["vllm:nixl_xfer_time_seconds_count"]
