"""The bytes of a request."""

import json
from collections.abc import Sequence

from llmd_oke.bench.deployment.streams import PATHS
from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.generator.addresses import Address
from llmd_oke.errors import KitError

Turn = tuple[str, str]
"""An earlier question and its answer."""


class RequestWriter:
    """Writes requests to one target; what is the same in all of them is written once.

    Raises `KitError` for a header that HTTP can't carry.
    """

    def __init__(self, target: Target, address: Address) -> None:
        self._target = target
        headers = {
            "host": address.authority,
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "llmd-oke",
            **{name.lower(): value for name, value in target.headers.items()},
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if lines.count("\r\n") != len(headers) or lines.count("\n") != len(headers):
            raise KitError("A header of the target has a line end in its value.")
        self._head = f"POST {address.path}{PATHS[target.api]} HTTP/1.1\r\n{lines}content-length: ".encode("latin-1")

    def write(self, text: str, output_tokens: int, earlier: Sequence[Turn] = ()) -> bytes:
        """A request for exactly `output_tokens`, as a stream with the server's own token counts at its end."""
        body = json.dumps(
            {
                "model": self._target.model,
                **self._content(text, earlier),
                "max_tokens": output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    def _content(self, text: str, earlier: Sequence[Turn]) -> dict[str, object]:
        if self._target.api == "completions":
            return {"prompt": "".join(part for turn in earlier for part in turn) + text}
        spoken = [(role, part) for turn in earlier for role, part in zip(("user", "assistant"), turn, strict=True)]
        return {"messages": [{"role": role, "content": part} for role, part in [*spoken, ("user", text)]]}
