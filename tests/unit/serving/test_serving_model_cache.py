"""The model cache as servers mount it, as data."""

from llmd_oke.serving.model_cache import CachePlaceArgs, mount

PLACE: CachePlaceArgs = {"kind": "node-disk", "prewarm": {"source": "hugging-face"}}


def test_servers_mount_a_shared_caches_claim_or_pre_warm_the_default_directory():
    assert mount(PLACE, "qwen3-32b", "") == {
        "path": "/mnt/nvme/models",
        "compiled_path": None,
        "kv_cache_path": None,
        "prewarm": {"source": "hugging-face", "connections": 8, "belongs_to_root": True},
    }
    assert mount({"kind": "file-storage"}, "qwen3-32b", "models") == {"claim": "models"}


def test_a_models_own_revision_overrides_the_caches():
    place: CachePlaceArgs = {
        **PLACE,
        "prewarm": {"source": "hugging-face", "revision": "a" * 40},
        "revisions": {"qwen3-32b": "b" * 40},
    }
    revisions = [mount(place, name, "")["prewarm"].get("revision") for name in ("qwen3-32b", "deepseek-v3")]
    assert revisions == ["b" * 40, "a" * 40]
