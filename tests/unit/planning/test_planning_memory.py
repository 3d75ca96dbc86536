"""Weights, activations and KV cache in GPU memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_oke import catalogue
from llmd_oke.catalogue.memory import key_value_copies
from llmd_oke.catalogue.models import LatentAttention
from llmd_oke.planning.memory import memory

SHAPE = catalogue.shape("BM.GPU.MI300X.8")
MODELS = [found for name in catalogue.model_names() if (found := catalogue.model(name)) is not None]
assert SHAPE is not None


def latent(model: catalogue.Model) -> catalogue.Model:
    attention = LatentAttention(key_value_rank=512, rope_dim=64)
    return model.model_copy(
        update={"architecture": model.architecture.model_copy(update={"latent_attention": attention})}
    )


ANY_MODEL = st.sampled_from([*MODELS, latent(MODELS[0])])
SIZES = st.sampled_from([1, 2, 4, 8])
SHARES = st.floats(0.05, 1.0)


@pytest.mark.parametrize(
    ("name", "size", "sequences"),
    [
        ("llama-3.3-70b-instruct-fp8-dynamic", 1, 81),
        ("llama-3.3-70b-instruct-fp8-dynamic", 2, 214),
        ("llama-3.3-70b-instruct-fp8-dynamic", 4, 479),
        ("llama-3.3-70b-instruct-fp8-dynamic", 8, 1009),
        ("gpt-oss-120b", 1, 386),
        ("gpt-oss-120b", 2, 975),
    ],
)
def test_capacity_at_4096_in_and_256_out_is_what_was_worked_out_by_hand(name: str, size: int, sequences: int):
    model = catalogue.model(name)
    assert model is not None
    assert memory(model, SHAPE, size, 0.95).sequences(4352) == pytest.approx(sequences, abs=1)


@given(ANY_MODEL, SIZES, SHARES)
def test_parts_add_up_to_the_share_of_the_gpus(model: catalogue.Model, size: int, share: float):
    fit = memory(model, SHAPE, size, share)
    assert fit.weights_gib + fit.activation_gib + fit.key_value_gib == pytest.approx(share * fit.gpu_gib)
    assert fit.key_value_tokens >= 0


@given(ANY_MODEL, SIZES, SIZES, SHARES)
def test_more_gpus_never_hold_fewer_tokens(model: catalogue.Model, one: int, other: int, share: float):
    fewer, more = sorted([one, other])
    assert memory(model, SHAPE, fewer, share).key_value_tokens <= memory(model, SHAPE, more, share).key_value_tokens


@given(ANY_MODEL, SIZES, SHARES, SHARES)
def test_a_larger_share_never_holds_fewer_tokens(model: catalogue.Model, size: int, one: float, other: float):
    less, more = sorted([one, other])
    assert memory(model, SHAPE, size, less).key_value_tokens <= memory(model, SHAPE, size, more).key_value_tokens


@given(ANY_MODEL, SIZES, st.floats(0, 200))
def test_heavier_weights_never_leave_more_tokens(model: catalogue.Model, size: int, further_gib: float):
    heavier = model.model_copy(
        update={"weights": model.weights.model_copy(update={"gib": model.weights.gib + further_gib})}
    )
    assert memory(heavier, SHAPE, size, 0.95).key_value_tokens <= memory(model, SHAPE, size, 0.95).key_value_tokens


def test_kv_heads_are_copied_only_where_there_are_more_gpus_than_heads():
    model = MODELS[0]
    few = model.model_copy(update={"architecture": model.architecture.model_copy(update={"key_value_heads": 2})})
    assert [key_value_copies(few, size) for size in (1, 2, 4, 8)] == [1, 1, 2, 4]
    assert [key_value_copies(latent(model), size) for size in (1, 2, 4, 8)] == [1, 2, 4, 8]
