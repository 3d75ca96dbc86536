"""What vLLM of an image does with an attention backend (`values/releases`)."""

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


def splits_by_heads(asked: Settings, image: str) -> bool:
    """Whether servers of other tensor parallel sizes can read their part of a KV cache; so it is where nothing is known
    of the image, or the backend is vLLM's choice.
    """
    release, backend = release_of_vllm(image), asked.attention_backend
    return release is None or backend is None or backend in release.vllm.attention_backend.split_by_heads
