"""Answers of vLLM, and where simulated servers and vLLM on a processor differ (`values/rehearsal/conformance.yaml`)."""

from functools import cache
from typing import Any, Literal

from llmd_oke.values import Entry, required_entry
from pydantic import Field, model_validator

Server = Literal["ours", "other", "real"]
SERVERS: tuple[Server, ...] = ("ours", "other", "real")


class Request(Entry):
    """A request: POST with a body or a text, GET without."""

    path: str
    body: dict[str, Any] | None = None
    text: str | None = None
    type: str = "application/json"
    headers: dict[str, str] = Field(default_factory=dict)


class Case(Entry):
    """One thing that is asked. `ours`, `other` and `real` are None where that server answers as `vllm` says, `newer`
    where the newer version of vLLM does.
    """

    what: str
    see: Literal["error", "fields", "values", "events", "counts", "metric"]
    vllm: dict[str, Any]
    source: str
    server: Literal["plain", "nixl", "uncached", "drafting"] = "plain"
    request: Request | None = None
    metric: str | None = None
    fields: tuple[str, ...] = ()
    under: str = ""
    event: int | None = None
    some_labels: tuple[str, ...] = ()
    ours: dict[str, Any] | None = None
    other: dict[str, Any] | None = None
    real: dict[str, Any] | None = None
    newer: dict[str, Any] | None = None
    why: str | None = None

    def expected(self, server: Server, *, newer: bool = False) -> dict[str, Any]:
        """Return what that server answers, as one of the `newer` version of vLLM or not."""
        if newer and self.newer is not None:
            return self.newer
        own: dict[str, Any] | None = getattr(self, server)
        return self.vllm if own is None else own

    @model_validator(mode="after")
    def _check(self) -> "Case":
        for server in SERVERS:
            if getattr(self, server) == self.vllm:
                raise ValueError(f"{server} is listed with what vLLM answers: that is no difference")
        if self.newer == self.vllm:
            raise ValueError("newer is listed with what the older version answers: that is no difference")
        if self.why is None and (self.ours is not None or self.real is not None):
            raise ValueError("a difference of ours, or of vLLM on a processor, needs its reason")
        return self


class Conformance(Entry):
    """The whole list, for two versions of vLLM and one of llm-d-inference-sim."""

    release: str
    newer: str
    other: str
    cases: dict[str, Case]


@cache
def conformance() -> Conformance:
    """The list."""
    return required_entry("rehearsal", "conformance", Conformance)
