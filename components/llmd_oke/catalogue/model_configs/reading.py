"""Reader of a model's config.json and weights index: reports all problems at once, and lists the assumptions of a
computed entry.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

from llmd_base.errors import InvalidStack, Problem
from pydantic import ValidationError

from llmd_oke.catalogue.model_configs.architectures import UNKNOWN_FAMILY, families
from llmd_oke.catalogue.model_configs.attention import DeltaNetConfig, LatentConfig, Mamba2Config, MambaConfig
from llmd_oke.catalogue.model_configs.config_file import (
    EXPERT_COUNTS,
    LAYER_KINDS,
    ExpertsConfig,
    ModelFileKeys,
    StoredConfig,
    TransformerConfig,
    WeightsIndex,
)
from llmd_oke.catalogue.model_configs.quantization import NumberFormat, number_format, pattern_problems
from llmd_oke.catalogue.model_configs.weights import ModelFiles

_VERDICT = "the model's entry can't be computed"

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Kind of layer for each letter in the key `hybrid_override_pattern` of config.json."""

_STATE_SPACE_HEADS = ("mamba_num_heads", "mamba_n_heads")
_STATE_SPACE_KEYS = (*_STATE_SPACE_HEADS, "mamba_d_state")
_UNKNOWN_LAYERS = ("n_mamba_heads", "conv_L_cache", "lru_width", "linear_attn_config")
_NO_KINDS = "some layers have a state space, and nothing says which"
_NO_ATTENTION = "no layer has a KV cache, by which servers are planned"
_OUTER_KEYS = ("quantization_config", "tie_word_embeddings", "torch_dtype", "dtype")

KeysType = TypeVar("KeysType", bound=ModelFileKeys)


def read_model_files(config: Mapping[str, object], index: Mapping[str, object] | None) -> ModelFiles:
    """Return the contents of a config.json, and of `model.safetensors.index.json` if given.

    Raises:
        InvalidStack: a key is missing, has a wrong type or an unknown value. Each problem has its path in the file.
    """
    text, prefix = _text_model(config)
    family = families().get(str(text.get("model_type")), UNKNOWN_FAMILY)
    problems = list(_unknown_layers(text, prefix))

    def read(type_: type[KeysType], document: Mapping[str, object], prefix: str = prefix) -> KeysType | None:
        try:
            return type_.model_validate(document)
        except ValidationError as error:
            problems.extend(_problems(error, prefix))
            return None

    general = read(TransformerConfig, text)
    has_experts = any(isinstance(count := text.get(name), int) and count > 1 for name in EXPERT_COUNTS)
    experts = read(ExpertsConfig, text) if has_experts else None
    latent = read(LatentConfig, text) if family.attention == "latent" or text.get("kv_lora_rank") else None
    gated = family.attention == "gated-delta-net" or text.get("linear_num_key_heads")
    delta_net = read(DeltaNetConfig, text) if gated else None
    state_space = None
    if any(text.get(name) for name in _STATE_SPACE_KEYS):
        state_space = read(Mamba2Config if any(text.get(name) for name in _STATE_SPACE_HEADS) else MambaConfig, text)
    weights = read(WeightsIndex, index, "model.safetensors.index.json: ") if index is not None else None
    quantized = read(StoredConfig, text)
    stored = number_format(quantized and quantized.quantization_config)
    problems += _contradictions(general, experts) if general else []
    if general and state_space and state_space.layers(general, in_all=family.attention_beside_states) is None:
        problems.append(Problem(f"{prefix}layer_types", None, "the kind of each layer", _NO_KINDS))
    if general and isinstance(stored, NumberFormat) and not problems:
        files = ModelFiles(family, general, stored, experts, latent, delta_net, state_space, weights)
        if any(part.cached_numbers for layer in range(general.num_hidden_layers) for part in files.attention(layer)):
            return files
        problems.append(Problem(f"{prefix}layer_types", None, "some layers with attention", _NO_ATTENTION))
    problems += [stored] if isinstance(stored, Problem) else []
    raise InvalidStack(list({problem.path: problem for problem in problems}.values()), _VERDICT)


def bounds(config: Mapping[str, object], index: Mapping[str, object] | None = None) -> list[str]:
    """Return a description of each assumption in a model's computed catalogue entry that its files don't confirm."""
    text, _ = _text_model(config)
    told: list[str] = []
    if str(text.get("model_type")) not in families():
        told.append(
            f"no code of {text.get('model_type')} was looked at: three matrices in each dense layer, no sinks, no gates"
            " and no experts beside those that config.json names are assumed"
        )
    towers = [name for name in ("vision_config", "audio_config") if config.get(name)]
    if towers and index is None:
        told.append(f"weights and parameters are without those of {' and '.join(towers)}")
    elif towers:
        told.append(f"parameters are without those of {' and '.join(towers)}")
    return told


def _text_model(config: Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """Return the part of config.json about the text model, and the prefix of its keys' paths."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return _with_layer_kinds(config), ""
    inner = cast("Mapping[str, object]", text)
    outer = {name: config[name] for name in _OUTER_KEYS if config.get(name) is not None and name not in inner}
    return _with_layer_kinds({**inner, **outer}), "text_config."


def _with_layer_kinds(text: Mapping[str, object]) -> Mapping[str, object]:
    """Return a text model's keys with `layer_types`, whichever key lists the kinds of layers, and with
    `num_hidden_layers` counted from that list if missing.
    """
    pattern, kinds = text.get("hybrid_override_pattern"), text.get("layer_types") or text.get("layers_block_type")
    if isinstance(pattern, str) and not kinds:
        kinds = [_LETTERS.get(letter, letter) for letter in pattern]
    if not isinstance(kinds, list) or kinds == text.get("layer_types"):
        return text
    listed = cast("list[object]", kinds)
    return {"num_hidden_layers": len(listed), **text, "layer_types": listed}


def _unknown_layers(text: Mapping[str, object], prefix: str) -> Iterator[Problem]:
    """Yield a problem for kinds of layers whose parameters and states can't be computed, such as short convolutions."""
    why = "layers of a kind that is not known: neither their parameters nor their states can be computed"
    half_told = ("ssm_state_size",) if not any(text.get(name) for name in _STATE_SPACE_KEYS) else ()
    for name in (*_UNKNOWN_LAYERS, *half_told):
        if text.get(name):
            accepted = "a model of attention, gated delta rules or the state spaces of Mamba"
            yield Problem(f"{prefix}{name}", text[name], accepted, why)
            return
    kinds = text.get("layer_types")
    for kind in dict.fromkeys(map(str, cast("list[object]", kinds))) if isinstance(kinds, list) else ():
        if kind not in LAYER_KINDS:
            yield Problem(f"{prefix}layer_types", kind, ", ".join(LAYER_KINDS), why)


def _problems(error: ValidationError, prefix: str) -> Iterator[Problem]:
    for detail in error.errors():
        path = prefix + ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "missing":
            yield Problem(path, None, "a value", "it is missing")
        else:
            accepted = detail["msg"].removeprefix("Input should be ")
            yield Problem(path, detail["input"], accepted, "it is of another form")


def _contradictions(config: TransformerConfig, experts: ExpertsConfig | None) -> Iterator[Problem]:
    """Yield a problem for sizes that contradict each other."""
    heads, shared = config.num_attention_heads, config.key_value_head_count
    if heads % shared:
        yield Problem("num_key_value_heads", shared, f"a divisor of {heads}", f"there are {heads} attention heads")
    if config.head_dim is None and config.hidden_size % heads:
        why = f"the hidden size of {config.hidden_size} can't be divided by {heads} attention heads"
        yield Problem("head_dim", None, "the size of a head", why)
    lists = {"layer_types": config.layer_types, "hybrid_layer_pattern": config.hybrid_layer_pattern}
    if experts is not None and isinstance(experts.moe_layer_freq, tuple):
        lists["moe_layer_freq"] = experts.moe_layer_freq
    for name, kinds in lists.items():
        if kinds is not None and len(kinds) != config.num_hidden_layers:
            why = f"there are {config.num_hidden_layers} layers (num_hidden_layers)"
            yield Problem(name, len(kinds), f"{config.num_hidden_layers} kinds", why)
    if experts is not None and experts.active > experts.count:
        yield Problem("num_experts_per_tok", experts.active, f"at most {experts.count}", "a layer has no more experts")
    yield from pattern_problems(config.quantization_config)
