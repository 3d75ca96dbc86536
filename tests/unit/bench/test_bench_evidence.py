from dataclasses import replace

import pytest
from fake_deployment import DECISIONS
from llmd_bench.deployment import MetricsEndpoint, Reading, ServerPod, Snapshot
from llmd_bench.evidence import EvidenceSettings, Sent, prove_remote_prefill
from llmd_bench.queries import parse
from llmd_bench.smoke import about_drafts

SENT = Sent(requests=10, prompt_tokens=10_000, attempted=10)
SETTINGS = EvidenceSettings(DECISIONS, decode_tensor_parallel_size=2)


def read(role: str, text: str | None, pod: str | None = None) -> Reading:
    endpoint = MetricsEndpoint(role, pod or f"{role}-0", f"http://{pod or role}/metrics")
    return Reading(endpoint, error="HTTP 401") if text is None else Reading(endpoint, parse(text))


def router(remote: int, local: int = 0) -> str:
    name = DECISIONS.names[0]
    return f'{name}{{decision_type="prefill-decode"}} {remote}\n{name}{{decision_type="decode-only"}} {local}\n'


def prefill(tokens: int) -> str:
    finished = f'vllm:request_success_total{{finished_reason="length"}} {tokens // 1000}'
    return f'vllm:prompt_tokens_total {tokens}\n{finished}\nvllm:request_success_total{{finished_reason="abort"}} 0\n'


def decode(received: int | None, transfers: int = 20, cached: int = 0, failed: int = 0) -> str:
    shown = "" if received is None else f"vllm:external_prefix_cache_hits_total {received}\n"
    return (
        f"{shown}vllm:prompt_tokens_total 10000\nvllm:prefix_cache_hits_total {cached}\n"
        f"vllm:nixl_xfer_time_seconds_count {transfers}\nvllm:nixl_num_failed_transfers_total {failed}\n"
    )


def seen(epp: str | None, prefill_text: str | None, decode_text: str | None) -> Snapshot:
    return Snapshot((read("router", epp), read("prefill", prefill_text), read("decode", decode_text)))


UNCOUNTED = seen(*["other 1\n"] * 3)
"""Counters before anything was counted."""


def prove(*counted: str | None, settings=SETTINGS, before=UNCOUNTED, sent=SENT):
    return prove_remote_prefill(before, seen(*counted), sent, settings)


ZERO = seen(router(0), prefill(0), decode(0, 0))


def test_the_share_of_remote_prefills_is_one_if_all_prompts_were_prefilled_remotely():
    proof = prove(router(10), prefill(10_000), decode(10_000))
    assert (proof.share, proof.by_epp, proof.by_prefill, proof.by_decode) == (1, 1, 1, 1)
    assert (proof.proven, proof.consistent, proof.fallback_requests, proof.notes) == (True, True, 0, ())


@pytest.mark.parametrize(
    ("counted", "shares", "proven", "consistent"),
    [
        ((router(9, local=1), prefill(9_000), decode(9_000)), [0.9, 0.9, 0.9], True, True),
        ((router(10), None, None), [1, 1, None], False, True),
        ((None, None, None), [None, None, None], False, True),
        ((router(10), prefill(10_000), decode(6_000, cached=4_000)), [1, 1, 1], True, True),
        ((router(4, local=10), prefill(4_000), decode(4_000)), [0.4, 0.4, 0.4], True, False),
    ],
    ids=["one local", "picker alone", "no counters", "tokens cached by decode", "beside other clients"],
)
def test_the_remote_prefill_share_is_the_least_that_picker_or_servers_count(counted, shares, proven, consistent):
    proof = prove(*counted)
    assert [proof.share, proof.by_epp, proof.by_decode] == pytest.approx(shares)
    assert (proof.proven, proof.consistent) == (proven, consistent)


def test_a_silent_fallback_to_local_prefill_is_detected_as_failed_prefills():
    proof = prove(router(10), prefill(6_000), decode(6_000, transfers=12))
    assert (proof.share, proof.by_epp, proof.fallback_requests) == (pytest.approx(0.6), 1, 4)
    (note,) = proof.notes
    assert "silent fallback" in note
    assert "4 of 10 prompts were computed by decode servers" in note
    assert (proof.failed_prefills, proof.consistent) == (4, False)


def test_prompts_computed_by_prefill_and_again_by_decode_are_detected():
    proof = prove(router(10), prefill(10_000), decode(5_000, failed=5))
    assert proof.share == pytest.approx(0.5)
    assert "took only 50.0% over" in proof.notes[0]
    assert "5 KV transfers failed on decode servers" in proof.notes


@pytest.mark.parametrize(
    ("seconds", "rate", "contradicts"), [(4.0, "0.25", True), (3.0, "0.33", False), (0.5, "2", False)]
)
def test_kv_transfers_as_slow_as_emulated_rdma_contradict_the_remote_prefill_proof(seconds, rate, contradicts):
    emulated = replace(SETTINGS, emulated_gb_per_s=0.25)
    counted = f"vllm:nixl_bytes_transferred_sum 1e9\nvllm:nixl_xfer_time_seconds_sum {seconds}\n"
    proof = prove(router(10), prefill(10_000), decode(10_000) + counted, settings=emulated)
    (note,) = proof.notes
    assert note.startswith(f"KV cache was read at {rate} GB/s, without the RDMA network")
    assert ("software emulation" in note, not proof.consistent) == (contradicts, contradicts)
    uncounted = prove(router(10), prefill(10_000), decode(10_000), settings=emulated)
    assert (uncounted.consistent, ["not known" in note for note in uncounted.notes]) == (True, [True])


def test_the_pickers_decisions_are_counted_under_each_releases_metric_name():
    older = 'llm_d_inference_scheduler_pd_decision_total{decision_type="prefill-decode"} 10\n'
    assert prove(older, prefill(10_000), decode(10_000)).by_epp == 1
    never = prove(router(0, local=10), prefill(0), decode(0, transfers=0))
    assert (never.share, never.fallback_requests, never.consistent) == (0, 0, True)
    without = prove("other 1\n", prefill(0), decode(0, transfers=0))
    assert without.by_epp == 0
    assert "shows none of" in without.notes[0]


def test_remote_prefill_is_proved_by_server_counters_if_picker_metrics_are_unread():
    proof = prove(None, prefill(10_000), decode(9_000))
    assert (proof.share, proof.by_epp, proof.proven) == (pytest.approx(0.9), None, True)
    assert proof.notes == ("metrics could not be read: router-0",)


def test_received_tokens_are_counted_up_to_a_partial_block_or_by_transfers_of_ranks():
    assert prove(router(10), prefill(10_000), decode(10_000 - 150)).by_decode == 1
    assert prove(router(10), prefill(10_000), decode(10_000 - 160)).by_decode == pytest.approx(0.984)
    by_rank = prove(router(10), prefill(10_000), decode(None, transfers=10))
    assert by_rank.by_decode == 0.5
    assert "transfers per tensor-parallel rank" in by_rank.notes[-1]


def test_requests_of_other_clients_are_detected_and_their_local_prefills_not_counted():
    proof = prove(router(12), prefill(12_000), decode(12_000))
    assert (proof.share, proof.consistent) == (1, False)
    assert [note.split(":")[0] for note in proof.notes] == ["other traffic", "other traffic"]
    local = prove(router(11, local=3), prefill(10_600), decode(10_600))
    assert local.share == 1
    assert "so that all shares are upper bounds" in local.notes[0]


def test_failed_requests_of_a_benchmark_do_not_count_as_those_of_other_clients():
    sent = replace(SENT, attempted=12)
    proof = prove(router(12), prefill(12_000), decode(12_000), before=ZERO, sent=sent)
    assert (proof.share, proof.consistent) == (1, True)


def test_a_restarted_prefill_server_makes_the_remote_prefill_share_a_lower_bound():
    before = seen(router(0), prefill(50_000), decode(0, 0))
    proof = prove(router(10), prefill(7_000), decode(10_000), before=before)
    assert proof.by_prefill == pytest.approx(0.7)
    assert any("restarted" in note and "prefill-0" in note for note in proof.notes)


def test_a_benchmark_without_answers_proves_no_remote_prefill():
    proof = prove_remote_prefill(ZERO, ZERO, Sent(0, 0, 0), SETTINGS)
    assert (proof.share, proof.proven) == (None, False)


def test_a_failed_remote_prefill_is_counted_even_if_its_client_request_failed():
    """The others were prefilled all right, so that no share shows it."""
    sent = Sent(requests=8, prompt_tokens=8_000, attempted=10)
    proof = prove(router(10), prefill(8_000), decode(8_000), sent=sent)
    assert (proof.by_prefill, proof.by_decode, proof.fallback_requests) == (1, 1, 0)
    assert proof.failed_prefills == 2
    assert proof.notes == ("2 prefills failed: a server was chosen for them and none finished the prompt",)


def test_an_aborted_prefill_does_not_count_as_finished():
    aborted = prefill(9_000).replace('"abort"} 0', '"abort"} 1')
    assert prove(router(10), aborted, decode(9_000)).failed_prefills == 1


def test_the_number_of_failed_prefills_is_unknown_unless_the_same_servers_count_them():
    assert prove(router(10), None, decode(9_000)).failed_prefills is None
    assert prove(router(10), "other 1\n", decode(9_000)).failed_prefills is None
    pods = (ServerPod("prefill", "p-0"), ServerPod("prefill", "p-1"))
    after = replace(seen(router(10), prefill(8_000), decode(8_000)), servers=pods)
    assert prove_remote_prefill(replace(UNCOUNTED, servers=pods[:1]), after, SENT, SETTINGS).failed_prefills is None


def test_a_note_states_the_share_of_draft_tokens_that_decode_servers_accepted():
    def counted(drafted: int, accepted: int) -> Snapshot:
        names = ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")
        text = "".join(f"{name} {value}\n" for name, value in zip(names, (drafted, accepted), strict=True))
        return Snapshot((read("decode", text),))

    (remark,) = about_drafts(counted(100, 50), counted(1100, 800))
    assert remark == "decode servers accepted 75.0% of 1000 drafted tokens (acceptedShare)"
    assert list(about_drafts(UNCOUNTED, UNCOUNTED)) == []
