"""Attention backends that vLLM of an image doesn't start with (`values/releases`)."""

from llmd_oke.catalogue.releases import release_of_vllm
from llmd_oke.rehearsal.vllm.command import Settings
from llmd_oke.rehearsal.vllm.refusal import Refusal


def check_backend(asked: Settings, image: str) -> None:
    """Whether the image's vLLM starts with that backend and that KV connector.

    Raises:
        Refusal: it doesn't; an image of no release refuses nothing.
    """
    release = release_of_vllm(image)
    if release is None or asked.transfer is None:
        return
    backend = asked.attention_backend
    if backend in release.vllm.attention_backend.refused_with_kv_connector:
        raise Refusal(
            1,
            f"ValueError: Selected backend AttentionBackendEnum.{backend} is not valid for this configuration. "
            "Reason: ['KV connector not supported']",
        )
