"""Number formats of a model's weights, from its quantization config, and the modules that stay unquantized."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from llmd_base.errors import Described, Problem

from llmd_oke.catalogue.model_configs.config_file import QuantizationConfig, QuantizedWeights

HALF_BYTES = 2
"""Bytes of a number in BF16 or FP16."""


@dataclass(frozen=True)
class NumberFormat:
    """Number format of weights.

    Attributes:
        name: name of the format.
        bits: bits per weight, including the weight's share of scales.
        block: number of consecutive weights that share a scale; None if a matrix isn't scaled by blocks.
    """

    name: str
    bits: float
    block: int | None = None


UNQUANTIZED = NumberFormat("bf16", 16)
_MXFP4 = NumberFormat("mxfp4", 4.25)  # a scale of 8 bits for 32 weights
_NVFP4 = NumberFormat("nvfp4", 4.5)  # a scale of 8 bits for 16 weights
_FLOAT_GROUPS = {16: _NVFP4, 32: _MXFP4}
_MODELOPT: Mapping[str | None, NumberFormat] = {"FP8": NumberFormat("fp8", 8), "NVFP4": _NVFP4}


def number_format(quantization: QuantizationConfig | None) -> NumberFormat | Problem:
    """Return the number format of weights, or a Problem if it is unknown. Scales per tensor or channel are ignored, as
    they are less than a thousandth of the weights' size; scales per block or group are counted.
    """
    if quantization is None:
        return UNQUANTIZED
    match quantization.quant_method:
        case "fp8" | "fbgemm_fp8":
            block = quantization.weight_block_size
            return NumberFormat("fp8", 8 + 32 / (block[0] * block[1]), block[0]) if block else NumberFormat("fp8", 8)
        case "mxfp4":
            return _MXFP4
        case "modelopt" if quantization.quant_algo in _MODELOPT:
            return _MODELOPT[quantization.quant_algo]
        case "compressed-tensors" if len(quantization.config_groups) == 1:
            (group,) = quantization.config_groups.values()
            return _group_format(group.weights)
        case method:
            path = "quantization_config"
            known = "fp8, fbgemm_fp8, mxfp4, modelopt in FP8 or NVFP4, or compressed-tensors with one group"
            return Problem(f"{path}.quant_method", method, known, "the bytes of its weights are not known")


def _group_format(weights: QuantizedWeights) -> NumberFormat | Problem:
    if weights.num_bits == 8:
        return NumberFormat("fp8" if weights.type == "float" else "int8", 8)
    if weights.type == "int" and weights.group_size and weights.group_size > 0:
        return NumberFormat("int4", 4 + 16 / weights.group_size)
    if weights.type == "float" and weights.group_size in _FLOAT_GROUPS:
        return _FLOAT_GROUPS[weights.group_size]
    path, known = "quantization_config.config_groups.*.weights", "float or int of 8 bits, or of 4 bits in groups"
    return Problem(path, Described("4 bits"), known, "their scales are not known")


_NESTED = re.compile(r"\)[*+?{]|[*+}][*+{]")
"""Pattern of nested repetition in a regular expression, which can take exponential time to match."""


def pattern_problems(quantization: QuantizationConfig | None) -> Iterator[Problem]:
    """Yield a problem for each pattern of unquantized modules that is invalid or could take too long to match."""
    patterns = (quantization and quantization.unquantized) or ()
    for i, pattern in enumerate(patterns):
        if pattern.startswith("re:"):
            try:
                fine = len(pattern) <= 200 and not _NESTED.search(pattern) and bool(re.compile(pattern[3:]))
            except re.error:
                fine = False
            if not fine:
                why = "it is not a pattern that names can be held against in a short time"
                yield Problem(f"quantization_config.ignore[{i}]", pattern, "a regular expression of one level", why)


def is_unquantized(module: str, quantization: QuantizationConfig | None) -> bool:
    """Tell whether a module's weights stay at two bytes, because a pattern of unquantized modules matches its name."""
    return any(_matches(pattern, module) for pattern in (quantization and quantization.unquantized) or ())


def _matches(pattern: str, module: str) -> bool:
    """Tell whether a pattern matches a module of the text model: by its name, a parent's name, a glob or `re:`. The
    prefix of the text model inside a larger model is ignored.
    """
    pattern = pattern.replace("language_model.", "", 1)
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "." not in pattern:
        return pattern in module.split(".")
    return module == pattern or module.startswith(f"{pattern}.") or fnmatchcase(module, f"{pattern}*")
