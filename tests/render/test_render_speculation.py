"""Speculative decoding: what servers, the model cache and versions of servers know of a draft."""

import json
from typing import Any

import pytest
from llmd_oke.testing import Rendered
from render_support import pod, vllm
from stack_files import model, stack

COMMIT, KIMI = "a" * 40, "kimi-k2.5"
DRAFT = "lightseekorg/kimi-k2.5-eagle3-mla"
CACHE = {"modelCache": {"kind": "node-disk"}}


@pytest.fixture
def drafting(rendered):
    def render(name: str, topology: str = "1p-tp8-1d-tp8", *, storage: Any = None, **asked: Any) -> Rendered:
        entry = model(topology, model=name, engine={"speculation": asked})
        return rendered(stack(entry, nodes=2, storage=storage or {}))

    return render


def config(container: dict[str, Any]) -> dict[str, Any]:
    (word,) = [word for word in container["args"] if word.startswith("--speculative-config=")]
    return json.loads(word.partition("=")[2])


def test_prefill_and_decode_servers_have_equal_speculative_decoding_settings(drafting):
    rendered = drafting("deepseek-r1", tokens=2)
    containers = [vllm(rendered, f"deepseek-r1-{role}") for role in ("prefill", "decode")]
    assert config(containers[0]) == config(containers[1])
    assert config(containers[0])["num_speculative_tokens"] == 2


def test_draft_layers_in_the_models_own_files_are_loaded_at_the_models_commit(drafting):
    """vLLM doesn't go by --revision for a draft; a server that reads the cache alone has the folder of the commit."""
    asked = config(vllm(drafting("deepseek-r1"), "deepseek-r1-decode"))
    assert asked == {
        "method": "mtp",
        "revision": "56d4cbbb4d29f4355bab4b9a39ccb717a14ad5ad",
        "num_speculative_tokens": 1,
    }
    assert "revision" not in config(vllm(drafting("deepseek-r1", storage=CACHE), "deepseek-r1-decode"))


def test_a_draft_models_own_repository_is_downloaded_at_its_pinned_commit(drafting):
    asked = config(vllm(drafting(KIMI, revision=COMMIT), "kimi-k2-5-decode"))
    assert (asked["model"], asked["revision"], asked["method"]) == (DRAFT, COMMIT, "eagle3")


def test_a_pre_warmed_draft_model_is_loaded_from_its_folder(drafting):
    rendered = drafting(KIMI, storage=CACHE, revision=COMMIT)
    asked = config(vllm(rendered, "kimi-k2-5-decode"))
    folder = f"/model-cache/hub/models--lightseekorg--kimi-k2.5-eagle3-mla/snapshots/{COMMIT}"
    assert asked["model"] == folder
    assert "revision" not in asked
    argument = f"--draft={DRAFT}@{COMMIT}"
    job = rendered.kubernetes("Job", "prewarm-kimi-k2-5")["spec"]["template"]["spec"]
    assert argument in job["containers"][0]["args"]
    first = pod(rendered, "kimi-k2-5-decode")["spec"]["initContainers"]
    assert argument in [word for container in first for word in container["args"]]


def test_a_draft_model_in_a_bucket_has_no_pinned_commit(drafting):
    bucket = {**CACHE, "prewarm": {"source": "object-storage"}}
    rendered = drafting(KIMI, storage=bucket)
    assert config(vllm(rendered, "kimi-k2-5-decode"))["model"] == DRAFT
    job = rendered.kubernetes("Job", "prewarm-kimi-k2-5")["spec"]["template"]["spec"]
    assert f"--draft={DRAFT}@main" in job["containers"][0]["args"]


def test_settings_that_a_draft_model_requires_are_among_the_servers_arguments(drafting):
    container = vllm(drafting("qwen3-next-80b-a3b-thinking", "agg-tp8-1r"), "qwen3-next-80b-a3b-thinking-aggregated")
    assert "--no-enable-chunked-prefill" in container["args"]


def test_servers_with_and_without_draft_models_do_not_exchange_kv_cache(rendered):
    def versions(**engine: Any) -> set[str]:
        entry = model("1p-tp8-1d-tp8", model="deepseek-r1", engine=engine)
        items = rendered(stack(entry, nodes=2)).manifests()
        labels = [item["spec"]["template"]["metadata"]["labels"] for item in items if item["kind"] == "Deployment"]
        return {label["llmd-oke/version"] for label in labels if "llmd-oke/version" in label}

    without, beside = versions(), versions(speculation={})
    assert len(without) == len(beside) == 1
    assert not without & beside


def test_the_assumed_share_of_accepted_draft_tokens_changes_no_deployment(rendered):
    def servers(**asked: Any) -> list[Any]:
        entry = model("agg-tp8-1r", model="deepseek-r1", engine={"speculation": asked})
        return [item for item in rendered(stack(entry)).manifests() if item["kind"] == "Deployment"]

    assert servers(acceptedShare=0.85) == servers()
