from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from created_stacks import refusals
from llmd_oke.config import GpuPoolConfig
from llmd_oke.planning.storage import node_disk_gib
from project_entries import model_entry, write_entry
from stack_files import DOMAIN, created_pool, existing_pool, model, ocid, paths, plan, problems

PLACE = {"availabilityDomain": DOMAIN}
FILE_SYSTEM = {"fileSystemId": "ocid1.filesystem.oc1..f", "mountTargetIp": "10.0.0.9", "exportPath": "/models"}
LLAMA = model("agg-tp1-1r", model="llama-3.3-70b-instruct-fp8-dynamic")
CACHE = {"modelCache": {"kind": "node-disk"}}


def storage(kind: str, **cache: Any) -> dict[str, Any]:
    return {"modelCache": {"kind": kind, **cache}}


def only(*models: dict[str, Any], **changes: Any) -> Any:
    (problem,) = problems(*models, **changes)
    return problem


@pytest.mark.parametrize(
    "cache",
    [
        storage("node-disk"),
        storage("file-storage", existing=FILE_SYSTEM),
        storage("lustre", existing={"managementIp": "10.0.0.9", "fileSystemName": "models"}),
    ],
)
def test_a_model_cache_on_node_disks_or_an_existing_file_system_is_accepted(cache: dict[str, Any]):
    assert problems(storage=cache) == []


def test_weights_of_all_models_each_counted_once_must_fit_the_model_cache_on_a_node():
    problem = only(model(), LLAMA, storage=storage("node-disk", capacityGib=100))
    assert (problem.path, problem.value) == ("storage.modelCache.capacityGib", 100)
    twice = [model(), model("agg-tp1-1r", name="again")]
    assert problems(*twice, storage=storage("node-disk", capacityGib=70)) == []


def test_a_too_small_model_cache_is_refused_with_a_size_that_is_accepted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llmd_oke.planning.storage.weights_gib", lambda _: 100.0)
    assert problems(storage=storage("node-disk", capacityGib=100)) == []
    monkeypatch.setattr("llmd_oke.planning.storage.weights_gib", lambda _: 100.2)
    assert only(storage=storage("node-disk", capacityGib=100)).accepted == "room for 101 GiB, or fewer models"
    assert problems(storage=storage("node-disk", capacityGib=101)) == []


def test_a_model_cache_on_disks_that_a_created_pool_leaves_unused_is_refused():
    boot_volume_gib = 89  # for all that servers write, without weights
    pool = created_pool(nvme="none", bootVolumeGib=boot_volume_gib)
    assert list(refusals(pool, stack_changes={"storage": storage("node-disk")})) == ["gpuPools[0].nvme"]


@pytest.mark.parametrize(
    ("cache", "release", "path", "compiled"),
    [
        (storage("node-disk"), "llm-d-0.9.0", "/mnt/nvme/models", "/mnt/nvme/models-compiled/llm-d"),
        (storage("node-disk", path="/data/w"), "llm-d-0.10.0", "/data/w", "/data/w-compiled/llm-d"),
        (storage("node-disk", compiledCode="/data/c"), "llm-d-0.9.0", "/mnt/nvme/models", "/data/c/llm-d"),
        (storage("node-disk", compiledCode="none"), "llm-d-0.9.0", "/mnt/nvme/models", None),
        (storage("node-disk"), "llm-d-0.7.0", "/mnt/nvme/models", None),
        (storage("file-storage", existing=FILE_SYSTEM), "llm-d-0.9.0", None, None),
    ],
)
def test_weights_and_from_release_0_9_0_on_compiled_code_are_kept_on_node_disks(
    cache: dict[str, Any], release: str, path: str | None, compiled: str | None
):
    planned = plan(model("agg-tp1-8r"), storage=cache, release=release).model_cache
    assert planned
    assert (planned.path, planned.compiled_path) == (path, compiled)


@pytest.mark.parametrize("folder", ["/data/w", "/data/w/compiled"])
def test_a_folder_for_vllms_compiled_code_that_is_the_model_caches_is_refused(folder: str):
    problem = only(storage=storage("node-disk", path="/data/w", compiledCode=folder))
    assert (problem.path, problem.value) == ("storage.modelCache.compiledCode", folder)
    assert problems(storage=storage("node-disk", path="/data/w", compiledCode="/data/w-2")) == []


def test_weights_of_all_models_must_fit_the_capacity_of_a_lustre_file_system(monkeypatch: pytest.MonkeyPatch):
    gib = 31200 * 10**9 / 2**30
    changes = {"storage": storage("lustre", capacityGb=31200)}
    monkeypatch.setattr("llmd_oke.planning.storage.weights_gib", lambda _: gib)
    assert refusals(stack_changes=changes) == {}
    monkeypatch.setattr("llmd_oke.planning.storage.weights_gib", lambda _: gib + 1)
    assert "room for 29059 GiB" in refusals(stack_changes=changes)["storage.modelCache.capacityGb"]


@pytest.mark.parametrize("kind", ["node-disk", "lustre"])
@pytest.mark.parametrize(("source", "paths"), [("none", ["models[0].engine.user"]), ("hugging-face", [])])
def test_servers_that_run_as_a_user_need_a_pre_warmed_cache_on_disks_that_are_roots(
    kind: str, source: str, paths: list[str]
):
    servers = model("agg-tp1-8r", engine={"user": {"id": 1000}})
    cache = {**storage(kind), "prewarm": {"source": source}}
    assert list(refusals(stack_changes={"models": [servers], "storage": cache})) == paths


SHUT = {"podInternet": False}
BUCKET = {"prewarm": {"source": "object-storage"}}


@pytest.mark.parametrize(
    ("network", "cni", "storage", "path"),
    [
        (SHUT, "vcn-native", {}, "storage.modelCache"),
        (SHUT, "vcn-native", storage("node-disk"), "storage.prewarm.source"),
        (SHUT, "vcn-native", {**storage("node-disk"), "prewarm": {"source": "none"}}, "storage.prewarm.source"),
        (SHUT, "vcn-native", {**storage("node-disk"), **BUCKET}, None),
        ({"workerInternet": False}, "flannel", storage("node-disk"), "storage.prewarm.source"),
        ({"workerInternet": False}, "flannel", {**storage("node-disk"), **BUCKET}, None),
        ({"workerInternet": False}, "vcn-native", storage("node-disk"), None),
    ],
)
def test_pods_without_internet_access_require_weights_from_a_bucket(
    network: dict[str, bool], cni: str, storage: dict[str, Any], path: str | None
):
    result = refusals(stack_changes={"storage": storage}, network=network, cni=cni)
    assert list(result) == ([path] if path else [])


def test_mirrored_disks_have_half_the_capacity_of_striped_ones():
    stripes, mirrors = (
        node_disk_gib(GpuPoolConfig(name="a", shape="BM.GPU.MI300X.8", size=1, nvme=raid))
        for raid in ("raid-0", "raid-10")
    )
    assert stripes == pytest.approx(28610, rel=0.001)
    assert mirrors == pytest.approx(stripes / 2)


@pytest.mark.parametrize("layer", ["all", "serving"])
@pytest.mark.parametrize("kind", ["file-storage", "lustre"])
def test_an_existing_cluster_requires_an_existing_shared_file_system(kind: str, layer: str):
    assert paths(storage=storage(kind), layer=layer) == ["storage.modelCache.existing"]


@pytest.mark.parametrize("kind", ["file-storage", "lustre"])
def test_the_serving_layer_may_use_the_file_system_of_its_cluster_stack(kind: str):
    layer = {"layer": "serving", "cluster": None, "clusterStack": "org/llmd-oke/prod-cluster"}
    assert problems(storage=storage(kind), **layer) == []


@pytest.mark.parametrize(("place", "paths"), [({}, ["storage.modelCache.availabilityDomain"]), (PLACE, [])])
def test_a_created_file_system_needs_a_domain_if_no_pool_has_one(place: dict[str, str], paths: list[str]):
    pool = existing_pool(poolId=ocid("nodepool"))
    assert list(refusals(pool, stack_changes={"storage": storage("file-storage", **place)})) == paths


def test_settings_useless_with_an_existing_file_system_or_no_cache_are_refused():
    existing = storage("file-storage", existing=FILE_SYSTEM, availabilityDomain="x:AD-1")
    assert paths(storage=existing) == ["storage.modelCache.availabilityDomain"]
    assert paths(storage={"prewarm": {"source": "hugging-face"}}) == ["storage.prewarm"]


DRAFT = "nvidia/gpt-oss-120b-Eagle3"


@pytest.mark.parametrize(
    "arguments",
    [
        [f'--speculative-config={{"method": "eagle3", "model": "{DRAFT}"}}'],
        ["--speculative-config", f'{{"model": "{DRAFT}"}}'],
        [f'-sc={{"model": "{DRAFT}"}}'],
        [f"--speculative_config.model={DRAFT}"],
        ["--speculative-config.model", DRAFT],
        ["--spec-model", DRAFT],
        ["--lora-modules", f"mine={DRAFT}"],
        [f"--lora-modules=mine={DRAFT}"],
        ["--lora-modules", "own=/model-cache/own", f'{{"name": "mine", "path": "{DRAFT}"}}'],
        [f'--default-mm-loras={{"audio": "{DRAFT}"}}'],
        [f"--tokenizer={DRAFT}"],
        ["--hf-config-path", DRAFT],
        [f"--generation-config={DRAFT}"],
        ["--generation_config", DRAFT],
    ],
)
def test_arguments_with_a_model_that_a_pre_warmed_server_cannot_load_are_refused(arguments: list[str]):
    servers = model("agg-tp1-1r", engine={"extraArgs": ["--seed=1", *arguments]})
    problem = only(servers, storage=storage("node-disk"))
    assert (problem.path, problem.value) == ("models[0].engine.extraArgs[1]", DRAFT)
    assert problems(servers, storage={**storage("node-disk"), "prewarm": {"source": "none"}}) == []
    assert problems(servers) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ['--speculative-config={"method": "ngram", "num_speculative_tokens": 4}'],
        ['--speculative-config={"model": "openai/gpt-oss-120b"}'],
        ["--speculative-config.method=ngram"],
        ["--lora-modules", "mine=/model-cache/adapters/mine"],
        ["--tokenizer=/model-cache/tokenizer"],
        ["--speculative-config=no json", "--seed=1"],
        ["--speculative-config", "[1]"],
        ["--generation-config=auto"],
        ["--generation-config", "vllm"],
    ],
)
def test_vllm_arguments_of_pre_warmed_servers_may_name_folders_and_their_own_model(arguments: list[str]):
    servers = model("agg-tp1-1r", engine={"extraArgs": arguments})
    assert problems(servers, storage=storage("node-disk")) == []


@pytest.mark.parametrize(("name", "paths"), [("/model-cache/tokenizer", []), (DRAFT, ["arguments[0]"])])
def test_pre_warmed_servers_of_a_projects_model_may_name_folders_in_its_entry(
    tmp_path: Path, name: str, paths: list[str]
):
    write_entry(tmp_path, "models/mine-8b", model_entry("mine-8b", arguments=[f"--tokenizer={name}"]))
    result = problems(model("agg-tp1-1r", model="mine-8b"), storage=storage("node-disk"))
    assert [(problem.file, problem.path) for problem in result] == [
        ("values/models/mine-8b.yaml", path) for path in paths
    ]


def test_adapters_loaded_by_request_are_refused_with_pre_warmed_servers():
    variable = "VLLM_LORA_RESOLVER_HF_REPO_LIST"
    served = model("agg-tp1-1r", engine={"env": {variable: "me/adapters"}})
    assert paths(served, storage=storage("node-disk")) == [f"models[0].engine.env.{variable}"]


def pins(**prewarm: Any) -> list[str]:
    stack = {**storage("node-disk"), **({"prewarm": prewarm} if prewarm else {})}
    return [item.text for item in plan(storage=stack).advice if "not pinned" in item.text]


def test_check_warns_of_a_model_without_a_pinned_revision(model_with: Callable[..., Any]):
    assert pins() == []
    (text,) = pins(source="object-storage")
    assert text.startswith("the bucket's files are not pinned")
    assert pins(source="object-storage", revisions={"gpt-oss-120b": "a" * 40}) == []
    model_with("gpt-oss-120b", revision=None)
    (text,) = pins()
    assert text.startswith("the revision of openai/gpt-oss-120b is not pinned")


@pytest.mark.parametrize(
    ("name", "revision"),
    [
        *(("gpt-oss-120b", revision) for revision in ("main", "v1.0", "a" * 39, "A" * 40)),
        ("gpt-oss-20b", "a" * 40),
    ],
    ids=["a branch", "a tag", "39 digits", "capital letters", "a model that is not served"],
)
def test_only_commits_of_served_models_are_accepted_as_pre_warmed_revisions(name: str, revision: str):
    cache = {**storage("node-disk"), "prewarm": {"revisions": {name: revision}}}
    assert paths(storage=cache) == [f"storage.prewarm.revisions.{name}"]


@pytest.mark.parametrize(
    ("cache", "path"),
    [
        ({"kind": "tape"}, "storage.modelCache.kind"),
        ({"kind": "node-disk", "path": "models/"}, "storage.modelCache.path"),
        ({"kind": "node-disk", "path": "/mnt/../etc"}, "storage.modelCache.path"),
        ({"kind": "lustre", "capacityGb": 100}, "storage.modelCache.capacityGb"),
        ({"kind": "file-storage", "existing": {**FILE_SYSTEM, "mountTargetIp": "x"}}, "storage.modelCache.existing"),
    ],
)
def test_an_invalid_storage_setting_is_reported_at_its_path(cache: dict[str, Any], path: str):
    assert only(storage={"modelCache": cache}).path.startswith(path)


def test_servers_files_must_fit_the_boot_volume_if_local_disks_are_unused():
    small = refusals(created_pool(nvme="none", bootVolumeGib=512))
    assert "(accepted: at least 658, or a storage.modelCache)" in small["gpuPools[0].bootVolumeGib"]
    assert "gpuPools[0].bootVolumeGib" in refusals(created_pool(nvme="none", bootVolumeGib=657))
    assert refusals(created_pool(nvme="none", bootVolumeGib=658)) == refusals(created_pool()) == {}
    disks_of_others = existing_pool(nvme="none", bootVolumeGib=512)
    assert problems(gpuPools=[disks_of_others]) == []


def test_an_unknown_release_is_the_only_problem_of_created_pools_with_enough_disk():
    assert list(refusals(created_pool(), stack_changes={"release": "llm-d-0.0"})) == ["release"]
    assert refusals(created_pool(), stack_changes={"storage": storage("node-disk", capacityGib=100)}) == {}


@pytest.mark.parametrize(
    ("disk_gib", "changes", "words"),
    [(500, {}, "450 GiB for pods (accepted: a storage.modelCache)"), (150, {"storage": CACHE}, "71 GiB for pods")],
    ids=["pods alone", "weights beside pods"],
)
def test_local_disks_too_small_for_pods_are_reported_at_the_pools_nvme_key(
    monkeypatch: pytest.MonkeyPatch, disk_gib: int, changes: dict[str, Any], words: str
):
    """No node of the catalogue has disks so small."""
    monkeypatch.setattr("llmd_oke.planning.storage.node_disk_gib", lambda _: disk_gib)
    assert f"its disks have {words}" in refusals(created_pool(), stack_changes=changes)["gpuPools[0].nvme"]


@pytest.mark.parametrize("striped_gib", [1000, 592 / 0.9])
def test_striping_is_proposed_where_mirrored_disks_are_too_small_for_pods(
    monkeypatch: pytest.MonkeyPatch, striped_gib: float
):
    sizes = {"raid-10": 500, "raid-0": striped_gib}
    monkeypatch.setattr("llmd_oke.planning.storage.node_disk_gib", lambda pool: sizes[pool.nvme])
    assert "(accepted: raid-0, or a storage.modelCache)" in refusals(created_pool())["gpuPools[0].nvme"]
    assert refusals(created_pool(nvme="raid-0")) == {}


@pytest.mark.parametrize(
    ("weights_gib", "accepted"), [(810, "raid-0, or fewer servers on a node"), (830, "fewer servers on a node")]
)
def test_another_raid_is_suggested_only_if_servers_files_fit_it_beside_the_weights(
    weights_gib: int, accepted: str, monkeypatch: pytest.MonkeyPatch
):
    sizes = {"raid-10": 950, "raid-0": 1000}
    monkeypatch.setattr("llmd_oke.planning.storage.node_disk_gib", lambda pool: sizes[pool.nvme])
    monkeypatch.setattr("llmd_oke.planning.storage.weights_gib", lambda _: weights_gib)
    crowded = refusals(created_pool(), stack_changes={"storage": storage("node-disk")})
    assert crowded["gpuPools[0].nvme"].endswith(f"for pods (accepted: {accepted})")
