"""Reading the event stream of a completion at little cost.

A busy client sees thousands of events a second, so events with output are only recognised, not parsed: a key stands
in quotes, and quotes inside text are escaped, so a quoted key in the line can't come from the generated text. The few
other events are parsed.
"""

import json
from dataclasses import dataclass, field
from typing import Literal, cast

Api = Literal["completions", "chat"]

PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

_MAX_ERROR_CHARACTERS = 400


@dataclass(slots=True)
class EventStream:
    """Collects what one answer says; feed it the bytes as they come.

    With `keep_text` the generated text is collected too, which means parsing every event.
    """

    api: Api
    keep_text: bool = False
    text: str = ""
    event_times_s: list[float] = field(default_factory=list[float])
    finished: bool = False
    error: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    _rest: bytes = b""
    _last: bytes = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Take `data` that arrived at `now_s`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line:
                continue
            if self._has_output(line):
                self.event_times_s.append(now_s)
                self._last = line
                if self.keep_text:
                    self._read(line[5:].strip())
            elif line.startswith(b"data:"):
                self._read(line[5:].strip())

    def end(self) -> None:
        """The connection has ended: look for token counts that came with the last output instead of after it."""
        if self.output_tokens is None and not self.keep_text and b'"usage"' in self._last:
            self._read(self._last[5:].strip())

    def _has_output(self, line: bytes) -> bool:
        if self.api == "completions":
            return b'"text"' in line
        return b'"delta"' in line and b'"role"' not in line

    def _read(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.finished = True
            return
        try:
            event: object = json.loads(payload)
        except ValueError:
            self.error = f"not JSON: {payload[:_MAX_ERROR_CHARACTERS].decode(errors='replace')}"
            return
        if isinstance(event, dict):
            self._note(cast("dict[str, object]", event))

    def _note(self, event: dict[str, object]) -> None:
        if event.get("error"):
            self.error = json.dumps(event["error"])[:_MAX_ERROR_CHARACTERS]
        usage = event.get("usage")
        if isinstance(usage, dict):
            counts = cast("dict[str, object]", usage)
            self.input_tokens = _count(counts.get("prompt_tokens"))
            self.output_tokens = _count(counts.get("completion_tokens"))
        if self.keep_text:
            self.text += _text(event)


def _text(event: dict[str, object]) -> str:
    """What the event adds, reasoning left out, as the next turn of a conversation would have it."""
    match event.get("choices"):
        case [{"text": str(text)}] | [{"delta": {"content": str(text)}}]:
            return text
        case _:
            return ""


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
