"""Differences between the servers that a stack renders and vLLM itself on a processor, from
`values/rehearsal/real-vllm.yaml`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from llmd_oke.values import Entry, entry_reader
from pydantic import PositiveFloat, PositiveInt

TRANSFER_FLAG = "--kv-transfer-config"
EXTRA_CONFIG = "kv_connector_extra_config"


class Difference(Entry):
    """Argument or environment variable that vLLM on a processor gets, with the reason; the value replaces the stack's
    own unless `own_wins`.
    """

    value: str
    because: str
    own_wins: bool = False


class ExtraConfig(Entry):
    """Keys that are added to a KV connector's extra configuration when vLLM runs on a processor, with the reason."""

    value: Mapping[str, int]
    because: str


class Number(Entry):
    """Number, such as a block size, that replaces the stack's own when vLLM runs on a processor, with the reason."""

    value: PositiveInt
    because: str


class ChangedLine(Entry):
    """Line of a Python file in vLLM's environment that is replaced when the environment is installed, with the reason.
    `file` is the path below site-packages; line and value have no indentation.
    """

    file: str
    line: str
    value: str
    because: str


class VocabularyModule(Entry):
    """Go module with a folder of tokenizers' published vocabularies."""

    module: str
    version: str
    folder: str


class TinySizes(Entry):
    """Sizes of tiny models, under their names in config.json of transformers."""

    num_hidden_layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    initializer_range: PositiveFloat


class TinyFamily(Entry):
    """Model family of which tiny models run on a processor: number format of weights, tokens per KV cache block (None
    for the stack's own), further arguments of servers, and additional keys of config.json.
    """

    dtype: str = "float32"
    block_size: Number | None = None
    arguments: tuple[Difference, ...] = ()
    config: Mapping[str, int | str | list[int] | dict[str, float | str]] = {}

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Arguments that servers of the family's tiny models get on a processor, with the reasons."""
        if self.block_size is None:
            return self.arguments
        blocks = Difference(value=f"--block-size={self.block_size.value}", because=self.block_size.because)
        return (blocks, *self.arguments)


class ServerMemory(Entry):
    """Memory in GiB that a rehearsal with vLLM itself needs: for each server, for each of the server's GPUs in
    addition, and for the rest of the rehearsal.
    """

    server: PositiveFloat
    gpu: PositiveFloat
    rest: PositiveFloat


class RealVllmVersion(Entry):
    """Version of vLLM that can be installed for rehearsals: model families that it can't run on a processor, with the
    reasons.
    """

    refused: Mapping[str, str]


class RealVllmData(Entry):
    """Content of `values/rehearsal/real-vllm.yaml`: versions, differences, tiny models, and servers' memory."""

    versions: Mapping[str, RealVllmVersion]
    arguments: tuple[Difference, ...]
    left_out: Mapping[str, str]
    kv_connector_extra_config: ExtraConfig
    environment: Mapping[str, Difference]
    hidden_folder: Difference
    changed_lines: tuple[ChangedLine, ...]
    picker_time_scale: Number
    sizes: TinySizes
    families: Mapping[str, TinyFamily]
    vocabularies: VocabularyModule
    memory: ServerMemory


real_vllm_data = entry_reader("rehearsal", "real-vllm", RealVllmData)
"""Return the content of `values/rehearsal/real-vllm.yaml`."""


def on_processor(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the command line of a vLLM server changed so that it runs on a processor in place of GPUs.

    Args:
        argv: the command line that the stack renders, `vllm serve` included.
        values: values of the placeholders `{…}` in the data file; `family` is the model's family.
    """
    data = real_vllm_data()
    kept = [word for word in _with_extra_config(argv) if word not in data.left_out]
    differences = (*data.families[values["family"]].differences, *data.arguments)
    return [*kept, *(difference.value.format(**values) for difference in differences)]


def environment_on_processor(environment: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a vLLM server changed so that it runs on a processor in place of GPUs;
    `values` are the values of the placeholders `{…}` in `values/rehearsal/real-vllm.yaml`.
    """
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
    """Return all differences between the servers that stacks render and vLLM on a processor, as texts with their
    reasons.
    """
    data = real_vllm_data()
    of_families: dict[tuple[str, str], list[str]] = {}
    for name, family in data.families.items():
        for item in family.differences:
            of_families.setdefault((item.value, item.because), []).append(name)
    return [
        *(f"{item.value}: {item.because}" for item in data.arguments),
        *(f"{value} of {', '.join(names)}: {because}" for (value, because), names in of_families.items()),
        *(f"no {word}: {because}" for word, because in data.left_out.items()),
        f"{TRANSFER_FLAG} has {json.dumps(dict(data.kv_connector_extra_config.value))}: "
        f"{data.kv_connector_extra_config.because}",
        *(f"{name}={item.value}: {item.because}" for name, item in data.environment.items()),
        f"{data.hidden_folder.value} is empty: {data.hidden_folder.because}",
        *(f"{item.value} in place of {item.line} in {item.file}: {item.because}" for item in data.changed_lines),
        f"times of endpoint pickers are {data.picker_time_scale.value} times as long: {data.picker_time_scale.because}",
    ]
