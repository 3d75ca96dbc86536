"""The commit of a draft's own repository, for the model cache and for servers."""

from dataclasses import replace

import pytest
from llmd_bench.deployment import Parallelism
from llmd_oke.program.models import model_cache_args
from llmd_oke.serving import units, vllm
from llmd_oke.serving.args import UnitArgs
from llmd_oke.serving.vllm import ServerSpec
from stack_files import model, plan

CATALOGUE_COMMIT, WEIGHTS_COMMIT = "c" * 40, "a" * 40


def pre_warmed(source: str) -> tuple[str, str | None]:
    """Repository and commit of the draft that pre-warming brings, where the catalogue names a commit of it."""
    storage = {"modelCache": {"kind": "node-disk"}, "prewarm": {"source": source}}
    made = plan(model("agg-tp1-1r", model="gpt-oss-120b", engine={"speculation": {}}), storage=storage)
    (planned,), cache = made.models, made.model_cache
    assert planned.settings.draft is not None
    assert cache is not None
    pinned = planned.settings.draft.draft.model_copy(update={"revision": CATALOGUE_COMMIT})
    settings = replace(planned.settings, draft=replace(planned.settings.draft, draft=pinned))
    (unit,) = planned.units
    (role,) = unit.roles
    changed = replace(planned, units=(replace(unit, roles=(replace(role, settings=settings),)),))
    args = model_cache_args(replace(made, models=(changed,)), cache, "prewarm")
    (draft,) = args.get("drafts") or ()
    return draft["repository"], draft.get("revision")


@pytest.mark.parametrize(("source", "commit"), [("hugging-face", CATALOGUE_COMMIT), ("object-storage", None)])
def test_a_draft_is_pre_warmed_at_the_catalogues_commit_unless_it_is_in_a_bucket(source: str, commit: str | None):
    assert pre_warmed(source) == ("nvidia/gpt-oss-120b-Eagle3-v3", commit)


def spec(source: str, commit: str) -> ServerSpec:
    """A server with KV cache in files and a draft of which the catalogue names a commit."""
    args: UnitArgs = {
        "release": "llm-d-0.10.0",
        "model": "gpt-oss-120b",
        "shape": "BM.GPU.MI300X.8",
        "namespace": "llm-d",
        "service_account": "model-server",
        "model_cache": {"path": "/models", "prewarm": {"source": source, "revision": WEIGHTS_COMMIT}},
        "engine": {"speculation": {}},
    }
    made = units.server_spec(args, "decode", Parallelism(1))
    assert made.model.draft is not None
    drafted = made.model.draft.model_copy(update={"revision": commit})
    return replace(made, model=made.model.model_copy(update={"draft": drafted}))


@pytest.mark.parametrize(("source", "same"), [("hugging-face", False), ("object-storage", True)])
def test_kv_cache_files_depend_on_the_catalogues_commit_of_a_draft_but_in_a_bucket(source: str, same: bool):
    first, second = (vllm.kv_cache_key(spec(source, commit)) for commit in (CATALOGUE_COMMIT, "d" * 40))
    assert (first == second) is same
