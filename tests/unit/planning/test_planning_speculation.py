"""Speculative decoding of a stack file: memory, what is refused, and what is told."""

from typing import Any

import pytest
from llmd_oke import catalogue
from stack_files import known_model, model, plan, problems

CACHE = {"modelCache": {"kind": "node-disk"}}
COMMIT = "a" * 40


def drafting(name: str, topology: str = "agg-tp8-1r", *, engine: dict[str, Any] | None = None, **asked: Any) -> Any:
    return model(topology, model=name, engine={"speculation": asked, **(engine or {})})


def memory(entry: dict[str, Any], role: str = "aggregated") -> Any:
    planned = plan(entry).models[0].units[0].role(role)
    assert planned is not None
    return planned.memory


def refused(*models: dict[str, Any], **changes: Any) -> dict[str, str]:
    return {problem.path: str(problem) for problem in problems(*models, **changes)}


def told(entry: dict[str, Any], **changes: Any) -> str:
    advice = plan(entry, **changes).advice
    return "\n".join(item.text for item in advice if item.path == "models[0].engine.speculation")


def test_draft_layers_in_a_models_files_take_memory_only_with_speculation():
    without, beside = memory(model("agg-tp8-1r", model="deepseek-r1")), memory(drafting("deepseek-r1"))
    assert without.draft_gib == 0
    assert beside.draft_gib == pytest.approx(14.4)
    assert without.key_value_gib - beside.key_value_gib == pytest.approx(14.4)
    # a latent cache is on each of the 8 GPUs, and one layer more has it
    expected = beside.key_value_gib * 2**30 / (8 * (70272 + 1152))
    assert beside.key_value_tokens == int(expected)


def test_data_parallel_ranks_share_a_drafts_experts_and_copy_its_other_weights():
    topology = "1p-tp1dp8ep-1d-tp1dp8ep"
    assert memory(drafting("deepseek-r1", topology), "decode").draft_gib == pytest.approx(10.5 + 8 * (14.4 - 10.5))


@pytest.mark.parametrize(
    "argument",
    [
        *("--spec-method=ngram", "--spec-tokens=3", "--speculative-config={}"),
        *("--speculative-config", "-sc", "--spec-model", "--speculative_config.method=mtp"),
    ],
)
def test_vllms_arguments_for_drafts_are_refused_beside_speculation(argument: str):
    assert "models[0].engine.extraArgs[0]" in refused(drafting("deepseek-r1", engine={"extraArgs": [argument]}))


def test_a_draft_model_without_tensor_parallelism_takes_its_memory_on_each_gpu():
    assert memory(drafting("gpt-oss-120b", "agg-tp2-1r")).draft_gib == pytest.approx(2 * 2.7)


def test_each_drafted_token_needs_memory_for_one_more_linear_attention_state():
    name = "qwen3.5-27b"
    states = [memory(entry).state_tokens for entry in (model("agg-tp8-1r", model=name), drafting(name, tokens=3))]
    known = known_model(name)
    assert known.draft is not None
    larger = known.kv_cache.bytes_per_token + known.draft.key_value_bytes_per_token
    assert states[1] == pytest.approx(states[0] * 4 * known.kv_cache.bytes_per_token / larger, rel=1e-3)


def test_a_draft_model_that_leaves_no_memory_for_kv_cache_is_refused_with_figures():
    tight = {"maxModelLen": 131072, "gpuMemoryUtilization": 0.4}
    entry = drafting("llama-3.3-70b-instruct", "agg-tp2-1r", engine=tight)
    (problem,) = refused(entry).values()
    assert "4.6 GiB of a draft" in problem


def test_weights_of_a_draft_model_repository_need_room_in_the_model_cache():
    cache = {"modelCache": {"kind": "node-disk", "capacityGib": 590}}
    assert refused(model("agg-tp8-1r", model="kimi-k2.5"), storage=cache) == {}
    cache["modelCache"]["capacityGib"] = 584
    assert refused(model("agg-tp8-1r", model="kimi-k2.5"), storage=cache) == {}
    assert "storage.modelCache.capacityGib" in refused(drafting("kimi-k2.5"), storage=cache)


@pytest.mark.parametrize(
    ("entry", "stack", "path", "words"),
    [
        (drafting("qwen3-32b", "agg-tp1-1r"), {}, "", "values/models/qwen3-32b.yaml"),
        (drafting("deepseek-r1"), {"release": "llm-d-0.7.0"}, "", "llm-d-0.9.0 or llm-d-0.10.0"),
        (drafting("deepseek-r1", revision=COMMIT), {}, ".revision", ""),
    ],
    ids=["no published draft", "an older release", "a revision for draft layers in the model's own files"],
)
def test_speculation_is_refused_for_models_and_releases_without_such_a_draft(
    entry: dict[str, Any], stack: dict[str, Any], path: str, words: str
):
    assert words in refused(entry, **stack)[f"models[0].engine.speculation{path}"]


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        ({"maxNumBatchedTokens": 32767}, "models[0].engine.maxNumBatchedTokens"),
        ({"aggregated": {"maxNumBatchedTokens": 8192}}, "models[0].engine.aggregated.maxNumBatchedTokens"),
        ({"maxNumBatchedTokens": 8192, "aggregated": {"maxNumSeqs": 64}}, "models[0].engine.maxNumBatchedTokens"),
    ],
)
def test_a_draft_that_prefills_whole_prompts_needs_maxnumbatchedtokens_of_a_prompt(engine: dict[str, Any], path: str):
    entry = drafting("qwen3-next-80b-a3b-thinking", engine={"maxModelLen": 32768, **engine})
    assert list(refused(entry)) == [path]
    enough = {"maxNumBatchedTokens": 32768, "maxModelLen": 32768}
    assert refused(drafting("qwen3-next-80b-a3b-thinking", engine=enough)) == {}
    assert "whole prompts" in told(drafting("qwen3-next-80b-a3b-thinking"))


def test_speculation_with_adapters_needs_a_larger_maxnumbatchedtokens():
    def found(batch: int, **engine: Any) -> dict[str, str]:
        entry = drafting(
            "llama-3.1-8b-instruct", "agg-tp1-1r", engine={"maxNumBatchedTokens": batch, "maxNumSeqs": 256, **engine}
        )
        return refused(entry, storage=CACHE)

    assert "1024" in found(1023, adapters={})["models[0].engine.maxNumBatchedTokens"]
    assert found(1024, adapters={}) == found(1023) == {}


@pytest.mark.parametrize("release", ["llm-d-0.9.0", "llm-d-0.0"])
@pytest.mark.parametrize(
    ("engine", "key"),
    [
        ({"maxNumBatchedTokens": 1023, "decode": {"maxNumSeqs": 256}}, "engine.maxNumBatchedTokens"),
        ({"decode": {"maxNumBatchedTokens": 1023}}, "engine.decode.maxNumBatchedTokens"),
    ],
)
def test_a_batch_too_small_for_drafts_is_reported_at_the_key_that_sets_it(
    engine: dict[str, Any], key: str, release: str
):
    entry = drafting("llama-3.1-8b-instruct", "1p-tp1-1d-tp1", engine={"adapters": {}, **engine})
    unknown = {"release"} if release == "llm-d-0.0" else set[str]()
    assert refused(entry, storage=CACHE, release=release).keys() == {f"models[0].{key}", *unknown}


def test_drafts_with_expert_parallelism_and_kv_cache_in_host_memory_are_refused():
    engine = {"kvCache": {"hostMemoryGib": 20}}
    assert refused(drafting("gpt-oss-120b", "agg-tp1ep-1r", engine=engine)).keys() == {"models[0].engine.speculation"}
    assert refused(drafting("gpt-oss-120b", "agg-tp1-1r", engine=engine)) == {}


def test_drafts_that_read_the_models_kv_cache_are_refused_with_kv_transfers():
    entry = drafting("gemma-4-26b-a4b-it", "1p-tp1-1d-tp1")
    assert "engine.speculation" in str(refused(entry))
    newer = plan(entry, release="llm-d-0.10.0").advice
    assert any("computes the whole prompt" in item.text or "compute the whole prompt" in item.text for item in newer)


def test_check_reports_a_draft_models_memory_origin_and_effect_on_forecasts():
    text = told(drafting("deepseek-r1"))
    assert "mtp of its own files" in text
    assert "no source says" in text
    assert "no forecast counts" in text
    assert "forecasts count 85% of its tokens" in told(drafting("deepseek-r1", acceptedShare=0.85))
    assert "MI300X" in told(drafting("qwen3-vl-235b-a22b-instruct"))


def test_check_warns_of_an_unpinned_draft_repository():
    assert "not pinned" in told(drafting("gpt-oss-120b", "agg-tp1-1r"))
    assert "not pinned" not in told(drafting("gpt-oss-120b", "agg-tp1-1r", revision=COMMIT))


def test_catalogue_entries_of_drafts_agree_with_their_models_weights_and_kv_cache():
    for known in map(known_model, catalogue.model_names()):
        if (draft := known.draft) is None:
            continue
        architecture = known.architecture
        assert draft.weights.expert_gib < draft.weights.gib, known.name
        if draft.method == "mtp" and draft.repository is None and architecture.sliding_window is None:
            each = known.kv_cache.bytes_per_token / architecture.attention_layers
            assert draft.key_value_bytes_per_token == each, known.name
        if known.weights.stored_gib is not None:
            stored = known.weights.stored_gib - known.weights.gib
            assert draft.weights.gib == pytest.approx(stored), known.name
