"""Differences between the servers that a stack renders and vLLM itself on a processor (`values/rehearsal`)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from llmd_oke.values import Entry, required_entry
from pydantic import PositiveFloat, PositiveInt

TRANSFER_FLAG = "--kv-transfer-config"
EXTRA_CONFIG = "kv_connector_extra_config"


class Difference(Entry):
    """A value that replaces the stack's, unless `own_wins`, or comes in addition, and the reason for it."""

    value: str
    because: str
    own_wins: bool = False


class ExtraConfig(Entry):
    """Keys that are added to those of a KV connector."""

    value: Mapping[str, int]
    because: str


class Number(Entry):
    """A number that replaces the usual one, with its reason."""

    value: PositiveInt
    because: str


class VocabularyModule(Entry):
    """A Go module that has published vocabularies, in a folder of it."""

    module: str
    version: str
    folder: str


class TinySizes(Entry):
    """Sizes of a tiny model, by transformers' names of its config.json."""

    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    initializer_range: PositiveFloat


class TinyFamily(Entry):
    """A family of models that runs on a processor: the number format of its weights, tokens of a block of KV cache
    where there can't be as many as the stack has, and keys of its config.json.
    """

    dtype: str = "float32"
    block_size: Number | None = None
    config: Mapping[str, int | str | list[int]] = {}


class ServerMemory(Entry):
    """GiB that a server takes, those for each GPU of it, and those that the rest of a rehearsal needs."""

    server: PositiveFloat
    gpu: PositiveFloat
    rest: PositiveFloat

    def of_server(self, gpus: int) -> float:
        """Return the GiB of one server."""
        return self.server + self.gpu * gpus


class RealVllmVersion(Entry):
    """A version of vLLM that can be installed: the families that it doesn't run on a processor, with the reasons."""

    refused: Mapping[str, str]


class RealVllmData(Entry):
    """Content of `values/rehearsal/real-vllm.yaml`: versions, differences, tiny models, and servers' memory."""

    versions: Mapping[str, RealVllmVersion]
    arguments: tuple[Difference, ...]
    left_out: Mapping[str, str]
    kv_connector_extra_config: ExtraConfig
    environment: Mapping[str, Difference]
    progress_thread_delay_us: Number
    picker_time_scale: Number
    sizes: TinySizes
    families: Mapping[str, TinyFamily]
    vocabularies: VocabularyModule
    memory: ServerMemory


@cache
def real_vllm_data() -> RealVllmData:
    """Return the differences, the tiny models' sizes, and the memory that servers take."""
    return required_entry("rehearsal", "real-vllm", RealVllmData)


def on_processor(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return a server's command line as it is run on a processor.

    Args:
        argv: the command line that the stack renders, `vllm serve` included.
        values: what `{…}` stands for in values of the data file; `family` is that of the model.
    """
    data = real_vllm_data()
    kept = [word for word in _with_extra_config(argv) if word not in data.left_out]
    block_size = data.families[values["family"]].block_size
    added = [f"--block-size={block_size.value}"] if block_size else []
    return [*kept, *added, *(difference.value.format(**values) for difference in data.arguments)]


def environment_on_processor(environment: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return a server's variables as it is run on a processor; `values` is what `{…}` stands for in the data file."""
    return {
        **environment,
        **{
            name: difference.value.format(**values)
            for name, difference in real_vllm_data().environment.items()
            if not (difference.own_wins and name in environment)
        },
    }


def _with_extra_config(argv: Sequence[str]) -> Iterator[str]:
    added, before = real_vllm_data().kv_connector_extra_config.value, ""
    for word in argv:
        flag, equals, text = word.partition("=")
        if flag == TRANSFER_FLAG and equals:
            yield f"{flag}={_extended(text, added)}"
        else:
            yield _extended(word, added) if before == TRANSFER_FLAG else word
        before = word


def _extended(text: str, added: Mapping[str, int]) -> str:
    config = json.loads(text)
    return json.dumps({**config, EXTRA_CONFIG: {**config.get(EXTRA_CONFIG, {}), **added}})


def lines() -> list[str]:
    """Return all differences, a line each with its reason."""
    data = real_vllm_data()
    return [
        *(f"{item.value}: {item.because}" for item in data.arguments),
        *(
            f"--block-size={family.block_size.value} of {name}: {family.block_size.because}"
            for name, family in data.families.items()
            if family.block_size
        ),
        *(f"no {word}: {because}" for word, because in data.left_out.items()),
        f"{TRANSFER_FLAG} has {json.dumps(dict(data.kv_connector_extra_config.value))}: "
        f"{data.kv_connector_extra_config.because}",
        *(f"{name}={item.value}: {item.because}" for name, item in data.environment.items()),
        f"NIXL's progress thread looks every {data.progress_thread_delay_us.value} us: "
        f"{data.progress_thread_delay_us.because}",
        f"times of endpoint pickers are {data.picker_time_scale.value} times as long: {data.picker_time_scale.because}",
    ]
