"""Counts the parameters of models by transformers' own classes: `count_parameters.py < configs.json`.

It runs in vLLM's environment. Each entry of input is a config.json by a name, or null for the default configuration of
the `model_type` that the name is; the answer has for each name the configuration of its text model, and the number of
its parameters, none of which is made.
"""

import json
import sys
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING


def counted(name: str, given: dict[str, Any] | None) -> dict[str, Any]:
    """Return the configuration of a text model, and the number of its parameters."""
    plain = {key: value for key, value in (given or {}).items() if key not in {"quantization_config", "auto_map"}}
    config = CONFIG_MAPPING[plain.pop("model_type", name)](**plain).get_text_config()
    config.architectures = None
    with torch.device("meta"):
        if type(config) in AutoModelForCausalLM._model_mapping:
            model, head = AutoModelForCausalLM.from_config(config), 0
        else:  # a text model that is a part of another alone, without the head
            model, head = AutoModel.from_config(config), config.vocab_size * config.hidden_size
    parameters = head + sum(parameter.numel() for parameter in model.parameters())
    told = {key: value for key, value in config.to_dict().items() if value is not None}
    return {"config": told, "parameters": parameters}


def main() -> None:
    """Answer with the parameters of each model."""
    print(json.dumps({name: counted(name, config) for name, config in json.load(sys.stdin).items()}, default=str))


if __name__ == "__main__":
    main()
