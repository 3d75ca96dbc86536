"""What the model cache is made of: storage drivers, mount options, and what the pods that fill it ask for."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class PrewarmRequests(Entry):
    """What the pod that fills a cache asks of its node."""

    cpu: str
    memory: str


class FileStorageDriver(Entry):
    """How pods mount File Storage."""

    driver: str
    mount_options: tuple[str, ...]
    smallest_claim_gib: int


class LustreDriver(Entry):
    """How pods mount File Storage with Lustre."""

    driver: str
    mount_options: tuple[str, ...]
    volume_attributes: dict[str, str]


class ModelCacheFacts(Entry):
    """What fills caches, and the drivers of shared ones."""

    requests: PrewarmRequests
    file_storage: FileStorageDriver
    lustre: LustreDriver


@cache
def model_cache() -> ModelCacheFacts:
    """The facts of `values/storage/model-cache.yaml`."""
    return required_entry("storage", "model-cache", ModelCacheFacts)
