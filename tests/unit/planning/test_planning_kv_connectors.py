"""KV connectors of the stack file: by which KV cache is handed over, and how much of it nodes keep in their memory."""

from collections.abc import Callable
from typing import Any

import pytest
from llmd_base.errors import InvalidStack, Problem
from llmd_oke import planning
from llmd_oke.catalogue import release_names
from llmd_oke.catalogue.models import LinearAttention
from stack_files import existing_pool, model, stack

NEWEST = "llm-d-0.10.0"
DENSE, WINDOWED, LATENT = "qwen3-32b", "gpt-oss-120b", "deepseek-v3"
UNPINNED = "qwen3-30b-a3b"
"""Model whose catalogue entry has no commit."""


def document(topology: object, name: str = DENSE, release: str = NEWEST, **changes: Any) -> dict[str, Any]:
    """A stack whose `changes` are of `engine.kvCache`, but for those of the `stack` and of the `engine`."""
    further, engine = changes.pop("stack", {}), {**changes.pop("engine", {}), "kvCache": changes}
    servers = model(topology, model=name, engine=engine)
    return stack(servers, release=release, gpuPools=[existing_pool(size=4)], **further)


def plan(*args: Any, **changes: Any) -> planning.Plan:
    return planning.plan_object(document(*args, **changes))


def found(*args: Any, **changes: Any) -> list[Problem]:
    with pytest.raises(InvalidStack) as error:
        plan(*args, **changes)
    return list(error.value.problems)


def only(*args: Any, **changes: Any) -> Problem:
    (problem,) = found(*args, **changes)
    return problem


def test_of_disaggregated_servers_only_prefill_keeps_kv_cache_in_host_memory():
    prefill, decode = plan("1p-tp2-1d-tp2", hostMemoryGib=64).models[0].units[0].roles
    assert (prefill.settings.host_memory_gib, decode.settings.host_memory_gib) == (64, 0)
    assert prefill.host_key_value_tokens == 64 * 2**30 // (256 * 1024)  # 64 layers of 8 heads of 128 in BF16
    assert decode.host_key_value_tokens == 0


def test_data_parallel_ranks_get_equal_parts_of_the_host_memory_for_kv_cache():
    (role,) = plan("agg-tp1dp4ep-1r", "qwen3-235b-a22b-fp8", hostMemoryGib=100).models[0].units[0].roles
    extra = role.settings.kv_transfer["kv_connector_extra_config"] if role.settings.kv_transfer else None
    assert extra == {"cpu_bytes_to_use": 25 * 2**30}


def test_host_memory_has_one_copy_of_a_latent_kv_cache_for_all_gpus_of_a_server():
    (role,) = plan("agg-tp8-1r", LATENT, hostMemoryGib=100).models[0].units[0].roles
    assert role.host_key_value_tokens == pytest.approx(100 * 2**30 / (61 * 576 * 2), rel=0.01)


@pytest.mark.parametrize(("topology", "most"), [("agg-tp1-1r", 115), ("1p-tp1-1d-tp2", 115), ("agg-tp8-1r", 128)])
def test_hostmemorygib_is_limited_to_what_fits_a_node_and_to_what_vllm_starts_with(topology: str, most: int):
    plan(topology, hostMemoryGib=most)
    problem = only(topology, hostMemoryGib=most + 1)
    assert (problem.path, problem.value) == ("models[0].engine.kvCache.hostMemoryGib", most + 1)
    assert problem.accepted.startswith(f"at most {most}")


@pytest.mark.parametrize("release", [name for name in release_names() if name not in {"llm-d-0.9.0", NEWEST}])
def test_older_releases_refuse_kv_cache_in_host_memory(release: str):
    assert only("agg-tp2-1r", release=release, hostMemoryGib=10).accepted == "nothing, or a newer release"


def test_linear_attention_is_refused_with_kv_cache_in_host_memory():
    assert "linear attention" in (only("agg-tp4-1r", "qwen3-next-80b-a3b-thinking", hostMemoryGib=10).why or "")


def test_connectors_proposed_in_place_of_one_fit_the_models_servers():
    problem = only(
        "1p-tp1dp8ep-1d-tp1dp8ep", LATENT, connector="mooncake", stack={"override": {"vllmImage": "r.io/a:1"}}
    )
    assert problem.accepted == "nixl"  # MoRI-IO between ranks takes a sidecar of the user's own too


def test_host_memory_is_refused_with_a_topology_without_prefill_servers():
    decode = {"decode": {"replicas": 1, "tensorParallelSize": 1}}
    assert all("topology" in problem.path for problem in found(decode, hostMemoryGib=10))


def test_hostmemorygib_beside_a_kv_offloading_argument_is_refused():
    engine = {"extraArgs": ["--kv-offloading-size=10"]}
    assert only("agg-tp2-1r", hostMemoryGib=10, engine=engine).path == "models[0].engine.extraArgs[0]"


def test_a_known_fault_of_offloading_with_eagle_3_is_refused_for_hostmemorygib_too():
    engine = {"extraArgs": ["--speculative-config", '{"method": "eagle3", "model": "m"}']}
    problems = found("agg-tp8ep-1r", LATENT, hostMemoryGib=10, engine=engine)
    assert any("EAGLE-3" in (problem.why or "") for problem in problems)


def test_a_kv_transfer_connector_is_refused_for_aggregated_servers():
    assert only("agg-tp2-1r", connector="mori-io").accepted == "nothing"


@pytest.mark.parametrize("connector", ["mori-io", "mooncake"])
def test_the_error_for_a_release_without_a_kv_connector_lists_the_releases_with_it(connector: str):
    problem = only("1p-tp2-1d-tp2", release="llm-d-0.9.0", connector=connector)
    assert problem.accepted == f"nixl, or release: {NEWEST}"


@pytest.mark.parametrize(
    ("topology", "name", "changes", "said"),
    [
        ("1p-tp1-1d-tp1", WINDOWED, {}, "sliding windows"),
        ("1p-tp4-1d-tp4", "qwen3-next-80b-a3b-thinking", {}, "linear attention"),
        ("1p-tp1-1d-tp2", DENSE, {}, "split KV heads"),
        ("1p-tp1dp8ep-1d-tp1dp8ep", "qwen3-235b-a22b-fp8", {}, "first rank's ports"),
        ("1p-tp2-1d-tp2", DENSE, {"stack": {"rdma": "none"}}, "by RDMA"),
    ],
)
def test_mori_io_is_refused_for_models_and_topologies_that_it_does_not_support(
    topology: str, name: str, changes: dict[str, Any], said: str
):
    problem = only(topology, name, connector="mori-io", **changes)
    assert problem.path == "models[0].engine.kvCache.connector"
    assert said in (problem.why or "")


def test_mori_io_is_accepted_for_copied_heads_latent_caches_and_several_servers():
    plan("1p-tp4ep-1d-tp8ep", "qwen3-235b-a22b-fp8", connector="mori-io")  # four KV heads
    plan("1p-tp8-1d-tp8", LATENT, connector="mori-io")
    advice = plan("2p-tp2-1d-tp2", connector="mori-io").advice
    assert any("issues/40340" in item.text for item in advice if "kvCache" in item.path)


@pytest.mark.parametrize("release", ["llm-d-0.9.0", NEWEST])
def test_linear_attention_with_replicated_kv_heads_needs_one_tensor_parallel_size(release: str):
    name = "qwen3-next-80b-a3b-thinking"  # two KV heads
    problem = only("1p-tp2-1d-tp4", name, release=release)
    assert problem.accepted.endswith("--no-enable-prefix-caching")
    plan("1p-tp4-1d-tp4", name, release=release)
    plan("1p-tp2-1d-tp4", name, release=release, engine={"extraArgs": ["--no-enable-prefix-caching"]})


def test_prefill_and_decode_sizes_may_differ_only_if_they_divide_linear_state_groups(model_with: Callable[..., Any]):
    name = "qwen3-next-80b-a3b-thinking"

    def grouped(groups: int) -> None:
        linear = LinearAttention(layers=36, state_bytes_per_sequence=10**6, groups=groups)
        model_with(name, architecture={"linear_attention": linear})

    grouped(8)
    plan("2p-tp1-1d-tp2", name)
    grouped(1)
    assert "the wrong part of the prompt's state" in (only("2p-tp1-1d-tp2", name).why or "")
    plan("1p-tp2-1d-tp2", name)


def test_mooncake_requires_an_image_with_its_package():
    assert only("1p-tp2-1d-tp2", connector="mooncake").accepted == "override.vllmImage with it, or nixl"
    image = "docker.io/acme/vllm-mooncake:v0.30.0"
    plan("1p-tp2-1d-tp2", connector="mooncake", stack={"override": {"vllmImage": image}})


ON_DISKS = {"storage": {"modelCache": {"kind": "node-disk"}}}
IN_FILES = {"hostMemoryGib": 8, "diskGib": 100}


def test_a_nodes_prefill_servers_share_the_disk_space_for_kv_cache_in_files():
    prefill, decode = plan("2p-tp1-1d-tp2", hostMemoryGib=32, diskGib=1000, stack=ON_DISKS).models[0].units[0].roles
    assert (prefill.settings.disk_gib, decode.settings.disk_gib) == (1000, 0)
    assert prefill.disk_key_value_tokens == 1000 * 2**30 // (256 * 1024)
    assert decode.settings.kv_transfer is not None
    assert "secondary_tiers" not in str(decode.settings.kv_transfer)
    assert "secondary_tiers" in str(prefill.settings.kv_transfer)


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({"stack": ON_DISKS}, "engine.kvCache.hostMemoryGib with it, or nothing"),
        (
            {"hostMemoryGib": 8, "stack": {"storage": {"modelCache": {"kind": "none"}}}},
            "storage.modelCache of kind node-disk, or nothing",
        ),
        ({"hostMemoryGib": 8, "release": "llm-d-0.9.0", "stack": ON_DISKS}, "nothing, or a newer release"),
    ],
)
def test_diskgib_is_refused_without_what_vllm_keeps_files_by(changes: dict[str, Any], accepted: str):
    problem = only("agg-tp2-1r", diskGib=100, **changes)
    assert (problem.path, problem.accepted) == ("models[0].engine.kvCache.diskGib", accepted)


def test_diskgib_is_refused_if_files_could_be_read_with_other_weights():
    bucket = {"storage": {**ON_DISKS["storage"], "prewarm": {"source": "object-storage"}}}
    assert only("agg-tp2-1r", stack=bucket, **IN_FILES).accepted.startswith("storage.prewarm.revisions.qwen3-32b with")
    bucket["storage"]["prewarm"]["revisions"] = {"qwen3-32b": "a" * 40}
    plan("agg-tp2-1r", stack=bucket, **IN_FILES)
    unwarmed = {"modelCache": {"kind": "node-disk"}, "prewarm": {"source": "none", "revisions": {UNPINNED: "a" * 40}}}
    problem = only("agg-tp4-1r", UNPINNED, stack={"storage": unwarmed}, **IN_FILES)
    assert problem.path == "models[0].engine.kvCache.diskGib"


def test_diskgib_is_limited_to_four_fifths_of_the_nodes_disks_beside_the_weights():
    most = 11_380  # of 14,305 GiB, RAID 10
    plan("agg-tp2-1r", hostMemoryGib=8, diskGib=most, stack=ON_DISKS)
    problem = only("agg-tp2-1r", hostMemoryGib=8, diskGib=most + 1, stack=ON_DISKS)
    assert (problem.value, problem.accepted) == (most + 1, f"at most {most} for all models together")


@pytest.mark.parametrize("weights_gib", [11_444, 14_000], ids=["just full", "overfull"])
def test_diskgib_is_refused_where_weights_and_pods_fill_the_nodes_disks(weights_gib: int):
    weights = {"storage": {"modelCache": {"kind": "node-disk", "capacityGib": weights_gib}}}
    assert only("agg-tp2-1r", hostMemoryGib=8, diskGib=1, stack=weights).accepted == "nothing"


def test_diskgib_is_limited_to_all_disks_of_nodes_whose_file_system_is_unknown():
    unknown = {**ON_DISKS, "gpuPools": [{**existing_pool(size=4), "nvme": "none"}]}
    given = {**document("agg-tp2-1r", hostMemoryGib=8, diskGib=60_000), **unknown}
    with pytest.raises(InvalidStack, match="at most 22824 for all models together"):
        planning.plan_object(given)


def test_diskgib_is_refused_with_an_image_that_may_change_under_its_name():
    own = {**ON_DISKS, "override": {"vllmImage": "docker.io/acme/vllm:latest"}}
    assert only("agg-tp2-1r", stack=own, **IN_FILES).accepted.startswith("override.vllmImage with @sha256:")
    own["override"] = {"vllmImage": f"docker.io/acme/vllm:v1@sha256:{'a' * 64}"}
    plan("agg-tp2-1r", stack=own, **IN_FILES)


def test_diskgib_is_refused_where_names_of_files_differ_from_server_to_server():
    engine: dict[str, Any] = {"extraArgs": ["--prefix-caching-hash-algo=xxhash_cbor"]}
    problem = only("agg-tp2-1r", stack=ON_DISKS, engine=engine, **IN_FILES)
    assert (problem.path, problem.value) == ("models[0].engine.extraArgs[0]", engine["extraArgs"][0])
    engine["env"] = {"PYTHONHASHSEED": "42"}
    plan("agg-tp2-1r", stack=ON_DISKS, engine=engine, **IN_FILES)


def test_a_catalogue_entrys_hash_that_names_files_differently_is_refused_at_diskgib(model_with: Callable[..., Any]):
    model_with("qwen3-32b", arguments=("--prefix-caching-hash-algo=xxhash_cbor",))
    problem = only("agg-tp2-1r", stack=ON_DISKS, **IN_FILES)
    assert (problem.path, problem.value) == ("models[0].engine.kvCache.diskGib", 100)


def test_models_of_one_name_have_the_same_disk_space_for_kv_cache():
    given = document("agg-tp2-1r", hostMemoryGib=8, diskGib=100, stack=ON_DISKS)
    given["models"].append(
        {**given["models"][0], "name": "other", "engine": {"kvCache": {"hostMemoryGib": 8, "diskGib": 200}}}
    )
    with pytest.raises(InvalidStack) as error:
        planning.plan_object(given)
    assert [problem.path for problem in error.value.problems] == [f"models[{i}].engine.kvCache.diskGib" for i in (0, 1)]
    assert error.value.problems[0].accepted == "the same of all models with qwen3-32b"
