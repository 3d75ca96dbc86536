"""KV cache that is handed over by NIXL, and servers that end: the simulated vLLM does as vLLM itself does.

llm-d-inference-sim has neither leases nor bytes of transfers (docs/simulated-vllm.md).
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from hand_over_servers import (
    BLOCK_TOKENS,
    FULL,
    LATENT,
    WINDOWED,
    Kind,
    Pair,
    Served,
    Starter,
    becomes,
    completion,
    on_this_processor,
    simulated,
    start_pair,
    transfer_flags,
)
from real_vllm_for_tests import VERSION

pytestmark = pytest.mark.rehearsal

LENGTHS = (151, 512, 543, 1999)
"""Of which the second ends with a block, and the third one token before its end."""
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


@pytest.fixture(scope="module", params=["ours", VERSION], ids=["ours-server", "real-server"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def start(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    folder: Path = tmp_path_factory.mktemp(kind)
    with simulated(folder) if kind == "ours" else on_this_processor(folder, kind) as starter:
        yield starter


@pytest.fixture(scope="module")
def pair(start: Starter, kind: Kind) -> Pair:
    return start_pair(start, kind, FULL)


@pytest.fixture(scope="module")
def windowed(start: Starter, kind: Kind) -> Pair:
    return start_pair(start, kind, WINDOWED)


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair of the first version that has multi-head latent attention on processors."""
    with on_this_processor(tmp_path_factory.mktemp("latent"), "0.30.0") as starter:
        yield start_pair(starter, "0.30.0", LATENT)


@pytest.fixture
def doomed(start: Starter, kind: Kind, request: pytest.FixtureRequest) -> Served:
    """A decode server of its own."""
    return start(request.node.originalname, FULL, *transfer_flags(kind, "consumer"))()


def prompt(length: int, seed: int) -> list[int]:
    """Return tokens that no server has seen, the last of which is the same for all."""
    return [*random.Random(seed).choices(range(10, 300), k=length - 1), 10]  # noqa: S311 - tokens, no secrets


@pytest.mark.parametrize("length", LENGTHS)
def test_a_kv_transfer_has_as_many_bytes_as_the_prompts_blocks(pair: Pair, length: int) -> None:
    assert pair.pulled_bytes(prompt(length, seed=length)) == pair.bytes_of_blocks(length)


@pytest.mark.parametrize("length", LENGTHS)
def test_sliding_window_layers_transfer_only_the_kv_blocks_of_their_window(windowed: Pair, length: int) -> None:
    assert windowed.pulled_bytes(prompt(length, seed=length)) == windowed.bytes_of_blocks(length)


@pytest.mark.parametrize("length", LENGTHS)
def test_real_vllm_transfers_a_latent_cache_once(latent: Pair, length: int) -> None:
    assert latent.pulled_bytes(prompt(length, seed=length)) == latent.bytes_of_blocks(length)


def test_block_ids_in_kv_transfer_params_are_grouped_by_kind_of_layer(windowed: Pair) -> None:
    groups = windowed.prefilled(prompt(512, seed=3))["remote_block_ids"]
    assert [len(group) for group in groups] == [128 // BLOCK_TOKENS + 1, 512 // BLOCK_TOKENS]


def test_kv_blocks_that_the_decode_server_has_are_not_pulled_again(pair: Pair) -> None:
    tokens = prompt(10 * BLOCK_TOKENS, seed=4)
    pair.pulled_bytes(tokens)
    assert pair.pulled_bytes(tokens) == pair.bytes_of_blocks(BLOCK_TOKENS)


def test_a_prefills_pulled_kv_blocks_are_freed_and_not_counted_as_expired(pair: Pair) -> None:
    expired = pair.prefill.metric(EXPIRED)
    pair.pulled_bytes(prompt(320, seed=5))
    assert becomes(pair.prefill.at_rest, 5)
    assert pair.prefill.metric(EXPIRED) == expired


def test_kv_blocks_that_no_server_pulls_are_freed_and_counted_when_their_lease_ends(pair: Pair) -> None:
    expired = pair.prefill.metric(EXPIRED)
    pair.prefilled(prompt(320, seed=6))
    assert not pair.prefill.at_rest()
    assert becomes(pair.prefill.at_rest)
    assert pair.prefill.metric(EXPIRED) == expired + 1


def test_kv_cache_whose_lease_has_ended_can_still_be_pulled(pair: Pair) -> None:
    """Decode servers don't ask: what they get may be another prompt's."""
    tokens = prompt(320, seed=7)
    transfer = pair.prefilled(tokens)
    assert becomes(pair.prefill.at_rest)
    assert pair.pulled_bytes(tokens, transfer) == pair.bytes_of_blocks(320)


def test_prefill_and_decode_servers_are_idle_after_a_client_disconnects_mid_stream(pair: Pair) -> None:
    tokens = prompt(320, seed=8)
    more = {"stream": True, "kv_transfer_params": pair.prefilled(tokens)}
    with pair.decode.client.stream("POST", "/v1/completions", json=completion(tokens, 3000, **more)) as response:
        next(response.iter_lines())
    assert becomes(lambda: pair.decode.at_rest() and pair.prefill.at_rest())


def test_a_terminating_server_finishes_its_streams_and_refuses_new_requests(doomed: Served) -> None:
    asked = completion(prompt(100, seed=9), 1000, stream=True)
    with doomed.client.stream("POST", "/v1/completions", json=asked) as response:
        lines = response.iter_lines()
        next(lines)
        doomed.terminate()
        assert becomes(lambda: refuses(doomed))
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert doomed.ended() == 0


def refuses(served: Served) -> bool:
    """Tell whether a server takes no new request."""
    try:
        return not httpx2.get(f"{served.client.base_url}/v1/models", timeout=5).is_success
    except httpx2.TransportError:
        return True


def test_kv_transfer_params_without_block_ids_end_the_server(doomed: Served) -> None:
    """Clients may not say where KV cache is, for this: the kit's Envoys, Gateways and routers refuse it (O2)."""
    hostile = {"do_remote_prefill": True}
    assert doomed.complete(prompt(40, seed=10), 2, kv_transfer_params=hostile).status_code == 500
    assert doomed.ended() == 0  # as a server that was asked to end


@pytest.mark.parametrize("length", LENGTHS)
def test_an_answer_from_transferred_kv_cache_equals_one_without_a_transfer(pair: Pair, kind: Kind, length: int) -> None:
    if kind == "ours":
        pytest.skip("the simulated vLLM computes nothing")
    assert_answers_equal(pair, length)


@pytest.mark.parametrize("length", LENGTHS)
def test_real_vllm_answers_from_a_transferred_latent_cache_as_from_its_own(latent: Pair, length: int) -> None:
    assert_answers_equal(latent, length)


def assert_answers_equal(pair: Pair, length: int) -> None:
    """Assert that the decode server answers from a transferred KV cache as from the one that it computes itself."""
    tokens = prompt(length, seed=length + 1)
    text, chances = pair.decode.answer(tokens, kv_transfer_params=pair.prefilled(tokens))
    own_text, own_chances = pair.decode.answer(tokens, cache_salt=f"{time.monotonic()}")
    assert own_text == text
    assert own_chances == pytest.approx(chances, abs=1e-3)


def test_a_request_that_pulls_another_prompts_kv_cache_gets_that_prompts_answer(pair: Pair, kind: Kind) -> None:
    if kind == "ours":
        pytest.skip("the simulated vLLM computes nothing")
    one, other = prompt(320, seed=1), prompt(320, seed=2)
    chances, others = pair.decode.answer(one, cache_salt="own")[1], pair.decode.answer(other, cache_salt="own")[1]
    swapped = pair.decode.answer(one, kv_transfer_params=pair.prefilled(other))[1]
    assert swapped == pytest.approx(others, abs=1e-3)
    assert swapped != pytest.approx(chances, abs=1e-3)
