"""One request on its way through the servers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmd_oke.tuning.simulation.arrivals import RequestClass
    from llmd_oke.tuning.simulation.engine import Engine


class Request:
    """A prompt and the tokens that are generated for it; `prefill` and `decode` are one server where it does both.

    `computed` counts prompt tokens whose KV cache is on the server: at first those of whole cached blocks, or all but
    one where a benchmark fills prompts in. `remote` says that it is to be pulled from `prefill`, `first_s` and `last_s`
    are when its first and last token came, in seconds of the simulation. It needs `prompt_room` tokens of KV cache to
    prefill and `whole_room` to decode. It shares the `prefix_tokens` of a `prefix` with others; `sent_tokens` are those
    that the router counted when it sent it.
    """

    __slots__ = (
        "arrival_s",
        "computed",
        "decode",
        "first_s",
        "input_tokens",
        "last_s",
        "output_tokens",
        "prefill",
        "prefix",
        "prefix_tokens",
        "prompt_room",
        "remote",
        "sent_tokens",
        "whole_room",
    )

    def __init__(
        self,
        arrival_s: float,
        size: "RequestClass",
        prefill: "Engine",
        decode: "Engine",
        prefix: int | None = None,
        sent_tokens: int = 0,
    ) -> None:
        self.arrival_s = arrival_s
        self.input_tokens = size.input_tokens
        self.output_tokens = size.output_tokens
        block_size = prefill.block_size
        whole = size.cached_tokens >= size.input_tokens
        self.computed = size.input_tokens - 1 if whole else size.cached_tokens // block_size * block_size
        self.prefix = prefix
        self.prefix_tokens = min(size.prefix_tokens, size.input_tokens - 1) // block_size * block_size
        self.sent_tokens = sent_tokens
        self.prefill = prefill
        self.decode = decode
        self.prompt_room = -(-(size.input_tokens + 1) // block_size) * block_size
        self.whole_room = -(-(size.input_tokens + size.output_tokens) // block_size) * block_size
        self.remote = False
        self.first_s = 0.0
        self.last_s = 0.0
