"""Parses command lines of vLLM servers as vLLM does, and looks up their variables: `parse_arguments.py < lines.json`.

It runs in vLLM's environment. Each line of input has `args` (what follows `vllm serve`) and `env`; the answer is a list
of what is wrong with each, as JSON.
"""

import contextlib
import dataclasses
import inspect
import io
import json
import sys

from pydantic import TypeAdapter, ValidationError
from vllm import envs
from vllm.config import KVTransferConfig, SpeculativeConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
except ModuleNotFoundError:  # before 0.30
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args

CONNECTORS, DRAFTS = "--kv-transfer-config=", "--speculative-config="


def problems(args: list[str], env: dict[str, str]) -> list[str]:
    """Return what is wrong with a command line, and the variables of vLLM that vLLM doesn't know."""
    found = [name for name in env if name.startswith("VLLM_") and name not in envs.environment_variables]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            namespace = make_arg_parser(FlexibleArgumentParser()).parse_args(args)
            validate_parsed_serve_args(namespace)
    except SystemExit:
        found.append(said.getvalue().strip().splitlines()[-1])
    except (TypeError, ValueError) as error:
        found.append(str(error))
    for argument in args:
        if argument.startswith(CONNECTORS):
            found += connector_problems(json.loads(argument.removeprefix(CONNECTORS)))
        if argument.startswith(DRAFTS):
            found += draft_problems(json.loads(argument.removeprefix(DRAFTS)))
    return found


def draft_problems(config: dict) -> list[str]:
    """Return the keys of a speculative configuration that vLLM doesn't have, or not with such a value. What it makes
    of the draft's own files isn't asked.
    """
    types = {field.name: field.type for field in dataclasses.fields(SpeculativeConfig)}
    found = [f"unknown key {name}" for name in config if name not in types]
    for name in config.keys() & types.keys():
        try:
            TypeAdapter(types[name]).validate_python(config[name])
        except ValidationError as error:
            found.append(f"{name}: {error.errors()[0]['msg']}")
    return found


def connector_problems(config: dict) -> list[str]:
    """Return the connectors of a configuration, and of those inside it, that vLLM doesn't have."""
    KVTransferConfig(**config)
    name, parts = config["kv_connector"], config.get("kv_connector_extra_config", {}).get("connectors", [])
    found = [] if name in KVConnectorFactory._registry else [f"unknown connector {name}"]
    found += tier_problems(config.get("kv_connector_extra_config", {}))
    return found + [problem for part in parts for problem in connector_problems(part)]


def tier_problems(extra_config: dict) -> list[str]:
    """Return the kind of offloading that a connector names and vLLM doesn't have, and unknown tiers and settings."""
    if "spec_name" not in extra_config:
        return []
    try:
        OffloadingSpecFactory.get_spec_cls(extra_config)
    except ValueError as error:
        return [str(error)]
    found: list[str] = []
    for tier in extra_config["secondary_tiers"]:
        known = inspect.signature(SecondaryTierFactory.get_tier_class(tier).__init__).parameters
        found += [f"unknown setting {name} of tier {tier['type']}" for name in tier if name not in {"type", *known}]
    return found


def main() -> None:
    """Answer with the problems of each command line."""
    print(json.dumps([problems(line["args"], line["env"]) for line in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
