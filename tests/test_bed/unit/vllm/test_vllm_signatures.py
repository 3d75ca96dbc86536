"""Signatures of `llmd-oke doctor` fire on what the simulated vLLM says with injected faults, and on nothing else."""

import pytest
from llmd_oke import catalogue
from llmd_oke.catalogue import shape
from llmd_oke.catalogue.signatures import text_signatures
from llmd_oke.operations.doctor.log_search import LogSearch
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.startup import ContainerFiles, cache_size, check_backend, read_model
from vllm_for_tests import MODEL, NIXL, read_flags

SEARCH = LogSearch(text_signatures())


def fired(text: str) -> set[str]:
    return set(SEARCH(text.encode(), "vllm"))


@pytest.mark.parametrize(
    ("flags", "signature"),
    [
        (["-tp", "3"], "vllm-weights-do-not-split"),
        (["-tp", "16"], "vllm-too-few-gpus"),
        (["--gpu-memory-utilization", "0.3"], "vllm-no-memory-for-kv-cache"),
        (["--gpu-memory-utilization", "0.37"], "vllm-context-does-not-fit"),
    ],
)
def test_doctor_recognizes_a_server_that_does_not_fit_its_gpus(flags: list[str], signature: str):
    with pytest.raises(StartRefusal) as refused:
        cache_size(read_flags(*flags), MODEL, shape("BM.GPU.MI300X.8"), None)
    assert fired(refused.value.text) == {signature}


def test_doctor_recognizes_weights_missing_in_the_model_cache(tmp_path):
    with pytest.raises(StartRefusal) as refused:
        read_model(MODEL, {"HF_HOME": "/model-cache"}, ContainerFiles({"/model-cache": str(tmp_path)}))
    assert fired(refused.value.text) == {"vllm-weights-not-cached"}


def test_doctor_recognizes_an_attention_backend_that_cannot_transfer_kv_cache():
    release = catalogue.release("llm-d-0.9.0")
    options = read_flags("--attention-backend", "ROCM_ATTN", "--kv-transfer-config", NIXL)
    with pytest.raises(StartRefusal) as refused:
        check_backend(options, release.vllm.image.reference)
    assert fired(refused.value.text) == {"vllm-backend-refuses-connector"}


def test_doctor_recognizes_kv_blocks_whose_lease_ended_before_they_were_read(serve, clock):
    prefill = serve("--kv-transfer-config", NIXL)
    for start in range(3):
        prefill.request(4096, 1, start=start * 10_000, hold=True)
    clock.run(until_s=60)
    assert fired("\n".join(prefill.log)) == {"nixl-lease-ended"}


def test_doctor_recognizes_a_kv_transfer_from_a_server_that_is_gone(pair, pull_from_vanished):
    pull_from_vanished(*pair)
    assert fired("\n".join(pair[1].log)) == {"nixl-transfer-fails"}


def test_doctor_recognizes_prefill_and_decode_servers_with_different_settings(serve):
    prefill = serve("--kv-transfer-config", NIXL, "--no-disable-hybrid-kv-cache-manager")
    decode = serve("--kv-transfer-config", NIXL, "--disable-hybrid-kv-cache-manager", host="10.244.0.3")
    prefill.hand_over_to(decode)
    assert fired("\n".join(decode.log)) == {"nixl-transfer-fails", "nixl-versions-differ"}


def test_doctor_recognizes_a_decode_server_crash_caused_by_a_new_prefill_server(serve):
    fault = {"LLMD_OKE_REHEARSED_CRASH_AFTER_PREFILL_RESTART": "1"}
    decode = serve("-tp", "2", "--kv-transfer-config", NIXL, host="10.244.0.3", environment=fault)
    first, second = (serve("--kv-transfer-config", NIXL, host=f"10.244.1.{index}") for index in range(2))
    for prefill, start in ((first, 0), (second, 10_000)):
        prefill.hand_over_to(decode, start)
        prefill.leave()
    assert "nixl-crash-after-prefill-restart" in fired("\n".join(decode.log))


def test_doctor_finds_no_fault_in_a_pair_of_servers_that_transfers_kv_cache(pair):
    prefill, decode = pair
    prefill.hand_over_to(decode)
    assert fired("\n".join([*prefill.log, *decode.log])) == set()
