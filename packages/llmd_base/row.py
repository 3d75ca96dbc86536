"""One row of the one table: what a deployment, or one role of it, did under one load; measured or predicted.

Times are milliseconds and seconds of model time, lengths are tokens, rates are per second, as the names say. A field is
None where the source does not tell it; nothing is filled in by guesswork.
"""

from enum import StrEnum
from typing import Annotated, Literal, TypedDict

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Scope = Literal["end-to-end", "prefill", "decode"]
"""Scope of a load: a whole deployment behind its router, or one server that only prefills or only decodes."""

Arrival = Literal["closed", "constant", "poisson", "trace"]
"""Way in which requests arrive: a fixed number in flight, at even intervals, at random, or as in a recorded trace."""

CONDITIONS = ("image", "release", "attention_backend", "quick_reduce", "block_size", "router_profile")
"""The fields of a row that say what was deployed beside its topology."""


class ConditionFacts(TypedDict):
    """The same of a plan."""

    image: str
    release: str
    attention_backend: str | None
    quick_reduce: str | None
    block_size: int
    router_profile: str


class Basis(StrEnum):
    """Trust that a figure deserves, best first; it stands beside each one that is shown."""

    MEASURED = "measured"
    """Measured on real servers."""
    CALIBRATED = "calibrated"
    """Calibrated: of a model, or of simulated servers, fitted to measurements."""
    BOUND = "bound"
    """Bound by what the hardware can't exceed; never a forecast."""


def _printable(text: str) -> str:
    """Check that a name may stand on a terminal, in a table and in a file: one line, nothing that is not seen."""
    if not text.isprintable():
        raise ValueError("has a control character, or one that is not seen")
    return text


def _encodable(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("has half a character")
    return text


Name = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_printable)]
"""A name from a file."""

Note = Annotated[str, StringConstraints(max_length=100_000), AfterValidator(_encodable)]
"""Words from a file, of one line or more."""

Amount = Annotated[float, Field(ge=0, le=1e15)]
"""Figure of a row. What is larger is none, and would overflow what is computed of it."""

Count = Annotated[int, Field(ge=0, le=10**12)]
"""Number of things."""

Positive = Annotated[int, Field(ge=1, le=10**6)]
"""Number of things of which there is at least one: rates are divided by it."""


def usd_per_million_tokens(usd_per_hour: float | None, tokens_per_s: float | None) -> float | None:
    """Return the price of a million tokens at a price by the hour; None where one of them is unknown, or nothing was
    put out.
    """
    return usd_per_hour / (tokens_per_s * 3600) * 1e6 if tokens_per_s and usd_per_hour is not None else None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Quantiles(_Part):
    """Distribution of one latency, in milliseconds."""

    mean: Amount | None = None
    min: Amount | None = None
    p25: Amount | None = None
    p50: Amount | None = None
    p75: Amount | None = None
    p90: Amount | None = None
    p95: Amount | None = None
    p99: Amount | None = None
    p99p9: Amount | None = None
    """The 99.9th percentile, as the llm-d benchmark report names it."""
    max: Amount | None = None


class Origin(_Part):
    """Source of a row: the tool, and the file, line and run where these are known."""

    tool: Name
    """The load generator or the model, for example `vllm bench serve`."""
    file: Name | None = None
    line: Count | None = None
    run: Name | None = None
    config_hash: Name | None = None
    started: Name | None = None
    """ISO 8601, UTC."""


class Row(_Part):
    """Load and results of `gpus_counted` GPUs of `gpu` that served `model`."""

    subject: Scope
    basis: Basis
    model: Name
    """Key of the catalogue, or the repository where the catalogue has none."""
    gpu: Name
    """Product, for example `MI300X`."""
    origin: Origin
    image: Name | None = None
    release: Name | None = None
    """llm-d release that was deployed, by its name in the catalogue."""
    attention_backend: Name | None = None
    quick_reduce: Name | None = None
    """Number format of all-reduce between a server's GPUs; `NONE` where nothing is quantized."""
    block_size: int | None = None
    """Tokens of a block of KV cache."""
    router_profile: Name | None = None
    """Router's way of choosing servers, as the stack file has it; `none` where there was no router."""
    topology: Name | None = None
    """Short form of one unit of a whole deployment, such as `8p-tp1-4d-tp2`."""
    copies: Positive = 1
    tensor_parallel_size: Positive | None = None
    """Tensor parallel size of the server, where `subject` is one role."""
    gpus_counted: Positive
    """GPUs that servers use; rates per GPU go by these."""
    gpus_reserved: Count | None = None
    """GPUs that pods hold; more than `gpus_counted` where some stay idle."""
    input_tokens: Amount
    """Mean prompt length (ISL)."""
    output_tokens: Amount
    """Mean output length (OSL)."""
    arrival: Arrival = "closed"
    concurrency: Amount | None = None
    """Requests in flight: set in a closed loop, the mean that was seen otherwise."""
    offered_requests_per_s: Amount | None = None
    achieved_requests_per_s: Amount | None = None
    input_tokens_per_s: Amount | None = None
    output_tokens_per_s: Amount | None = None
    ttft_ms: Quantiles = Field(default_factory=Quantiles)
    tpot_ms: Quantiles = Field(default_factory=Quantiles)
    itl_ms: Quantiles = Field(default_factory=Quantiles)
    e2e_ms: Quantiles = Field(default_factory=Quantiles)
    requests: Count | None = None
    failures: Count = 0
    duration_s: Amount | None = None
    seed: int | None = None
    max_num_seqs: Count | None = None
    """Sequences that one server runs at a time."""
    prefix_cache_hit_share: Amount | None = None
    goodput_share: Amount | None = None
    """Share of requests that met the targets that the run was given."""
    price_usd_per_hour: Amount | None = None
    notes: tuple[Note, ...] = ()

    @property
    def conditions(self) -> dict[str, str | int | None]:
        """The circumstances beside topology and load that figures depend on, by field; None where one is not told."""
        return {name: getattr(self, name) for name in CONDITIONS}

    @property
    def nothing_measured(self) -> str | None:
        """Reason why this is no measurement: nothing was sent in it, or nothing came of what was; None for all others,
        of which all requests may have failed.
        """
        if self.requests == 0:
            return "no request was sent (requests: 0)"
        if self.duration_s == 0:
            return "it lasted no time (duration_s: 0)"
        rates = (self.achieved_requests_per_s, self.input_tokens_per_s, self.output_tokens_per_s)
        known = [rate for rate in rates if rate is not None]
        return "all its rates are 0, and no request failed" if known and not any(known) and not self.failures else None

    @property
    def tpsg(self) -> float | None:
        """Output tokens per second and GPU."""
        return None if self.output_tokens_per_s is None else self.output_tokens_per_s / self.gpus_counted

    @property
    def tpsu(self) -> float | None:
        """Output tokens per second and user, over everything in flight, as the published sweeps count it."""
        if self.output_tokens_per_s is None or not self.concurrency:
            return None
        return self.output_tokens_per_s / self.concurrency

    @property
    def tpsu_decode(self) -> float | None:
        """Output tokens per second that a user sees once the first token is there: 1 / TPOT."""
        return None if not self.tpot_ms.mean else 1000 / self.tpot_ms.mean

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Price of a million output tokens at this load."""
        return usd_per_million_tokens(self.price_usd_per_hour, self.output_tokens_per_s)
