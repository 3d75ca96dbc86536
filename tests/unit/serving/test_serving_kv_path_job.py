"""The Job that measures a path of KV cache, as data."""

from llmd_oke.catalogue.benchmarks import kv_path
from llmd_oke.catalogue.container_images import parse_reference
from llmd_oke.catalogue.models import LatentAttention
from llmd_oke.objects import resolve_model, resolve_release, resolve_shape
from llmd_oke.serving import jobs
from llmd_oke.serving.jobs import JobSettings
from llmd_oke.serving.vllm import ServerSpec
from llmd_oke.values import names
from llmd_pods.kv_path import KvPathRequest

MODEL = resolve_model("gpt-oss-120b")
SHAPE = resolve_shape("BM.GPU.MI300X.8")
PLACE = JobSettings("llm-d", "kv-path-1", parse_reference("ghcr.io/llm-d/vllm:1"), SHAPE)
SPEC = ServerSpec(resolve_release("llm-d-0.7.0"), MODEL, SHAPE, "prefill", 1, True, {"env": {"UCX_TLS": "rc"}})
TRANSFERS = jobs.transfers(MODEL, kv_path().prompt_tokens, block_tokens=16, regions_per_layer=1)
REQUEST = KvPathRequest("llm-d", "kv-path-1", TRANSFERS, 2, 1, 60)


def made(nodes=()):
    return jobs.kv_path_job(PLACE, REQUEST, SPEC, kv_path(), nodes)


def pod(nodes=()):
    return made(nodes)["spec"]["template"]["spec"]


def container():
    return pod()["containers"][0]


def test_two_pods_run_side_by_side():
    spec = made()["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert spec["backoffLimit"] == 0


def test_no_node_has_both():
    (apart,) = pod()["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"].items() <= made()["spec"]["template"]["metadata"]["labels"].items()


def test_named_nodes_are_the_only_ones():
    affinity = pod(("a", "b"))["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["a"], ["b"]]
    assert "nodeAffinity" not in pod()["affinity"]


def test_each_pod_has_a_gpu_and_a_port_as_a_server_has():
    devices = {"amd.com/gpu": "1", "nvidia.com/sriov-rdma-vf": "1"}
    assert devices.items() <= container()["resources"]["limits"].items()
    assert devices.items() <= container()["resources"]["requests"].items()
    assert "sriov-rdma-vf" in made()["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]


def test_ucx_is_set_as_in_servers_and_no_secret_is_in_the_pod():
    environment = {item["name"]: item for item in container()["env"]}
    assert environment["UCX_TLS"]["value"] == "rc"
    assert environment["UCX_IB_GID_INDEX"]["value"] == "3"
    assert "HF_TOKEN" not in environment


def test_pods_may_lock_memory_and_nothing_else():
    security = container()["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK", "SYS_NICE"]}
    assert security["allowPrivilegeEscalation"] is False


def test_pods_may_write_and_read_their_own_config_maps_alone():
    objects = jobs.kv_path_objects(PLACE, REQUEST, "u")
    (role,) = [item for item in objects if item["kind"] == "Role"]
    names = ["kv-path-1-meeting", "kv-path-1-prefill", "kv-path-1-decode"]
    assert [rule["resourceNames"] for rule in role["rules"]] == [names, names]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in objects} == {"u"}


def test_a_prompts_cache_is_read_in_one_piece_and_in_those_of_vllm():
    """gpt-oss-120b: 73,728 bytes for a token over 36 layers; a block of 16 tokens is 32 KiB in each layer."""
    whole, pieces = [item for item in REQUEST.transfers if item.tokens == 4096]
    assert (whole.descriptors, whole.length_bytes) == (1, 4096 * 73_728)
    assert (pieces.descriptor_bytes, pieces.descriptors) == (32_768, 36 * 256)
    assert pieces.length_bytes == whole.length_bytes


def pieces_of(model, block_tokens, regions_per_layer):
    (_, pieces) = jobs.transfers(model, [4096], block_tokens, regions_per_layer)
    return pieces.descriptor_bytes, pieces.descriptors


def test_keys_and_values_in_separate_regions_are_twice_the_pieces_of_half_the_size():
    assert pieces_of(MODEL, 16, 2) == (16_384, 2 * 36 * 256)


def test_larger_blocks_are_larger_pieces():
    assert pieces_of(MODEL, 64, 1) == (131_072, 36 * 64)


def test_mla_has_one_cache_for_keys_and_values():
    latent = LatentAttention(key_value_rank=512, rope_dim=64)
    model = MODEL.model_copy(
        update={"architecture": MODEL.architecture.model_copy(update={"latent_attention": latent})}
    )
    assert pieces_of(model, 16, 2) == (32_768, 36 * 256)


def test_every_release_says_how_its_vllm_cuts_the_cache():
    assert set(kv_path().regions_per_layer) == set(names("releases"))
