"""Row of the table of results: load and figures of a deployment, or of one of its roles; measured or predicted.

Times are in milliseconds or seconds as the field names say, in model time: wall time divided by the time scale, by
which simulated servers are slower than real ones. Lengths are in tokens, rates per second. A field is None if its
source doesn't state the value; values are never guessed.
"""

from enum import StrEnum
from typing import Annotated, Literal, NotRequired, TypedDict

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Scope = Literal["end-to-end", "prefill", "decode"]
"""Part of a deployment under load: the whole deployment behind its router, or one server that only prefills or only
decodes.
"""

Arrival = Literal["closed", "constant", "poisson", "trace"]
"""Arrival process of requests: a fixed number in flight, even intervals, Poisson arrivals, or the times of a recorded
trace.
"""

CONDITIONS = ("image", "release", "attention_backend", "quick_reduce", "block_size", "router_profile", "draft_tokens")
"""Fields of a row that describe the deployment apart from its topology."""


class ConditionFacts(TypedDict):
    """Values of a plan for the fields in `CONDITIONS`."""

    image: str
    release: str
    attention_backend: str | None
    quick_reduce: str | None
    block_size: int
    router_profile: str
    draft_tokens: NotRequired[int]
    """Number of tokens drafted for each sequence in a step; left out where servers draft nothing."""


class Basis(StrEnum):
    """Origin of a figure, from the most to the least trusted; shown beside each figure."""

    MEASURED = "measured"
    """Measured on real servers."""
    CALIBRATED = "calibrated"
    """Computed by a model or by simulated servers that were fitted to measurements."""
    BOUND = "bound"
    """Computed from the hardware's limits, which no real server reaches; never a forecast."""


def _printable(text: str) -> str:
    """Return the text, which must be printable: names appear on terminals, in tables and in one line of a file.

    Raises:
        ValueError: the text has a control or another non-printable character, such as a line break.
    """
    if not text.isprintable():
        raise ValueError("has a control character, or one that is not seen")
    return text


def _encodable(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("has half a character")
    return text


Name = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_printable)]
"""Name from an untrusted file: printable, in one line."""

Note = Annotated[str, StringConstraints(max_length=100_000), AfterValidator(_encodable)]
"""Free text from an untrusted file, of one or more lines."""

Amount = Annotated[float, Field(ge=0, le=1e15)]
"""Non-negative figure of a row. The maximum rejects nonsense that would overflow in later computations."""

Count = Annotated[int, Field(ge=0, le=10**12)]
"""Non-negative integer count."""

Positive = Annotated[int, Field(ge=1, le=10**6)]
"""Integer count of at least 1, by which rates are divided."""


def usd_per_million_tokens(usd_per_hour: float | None, tokens_per_s: float | None) -> float | None:
    """Return the price of a million tokens in USD; None if the hourly price or the rate is unknown or the rate is 0."""
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
    """99.9th percentile, named as in llm-d's benchmark reports."""
    max: Amount | None = None


class Origin(_Part):
    """Source of a row: the tool, and the file, line and run if known."""

    tool: Name
    """Load generator or model that produced the figures, for example `vllm bench serve`."""
    file: Name | None = None
    line: Count | None = None
    run: Name | None = None
    config_hash: Name | None = None
    started: Name | None = None
    """Start time in ISO 8601, UTC."""


class Row(_Part):
    """Load and results of a deployment, or of a server of one role, that serves `model` on `gpus_counted` GPUs of
    product `gpu`.
    """

    subject: Scope
    basis: Basis
    model: Name
    """Name of the model in the catalogue; the Hugging Face repository if the catalogue lacks the model."""
    gpu: Name
    """Product name, for example `MI300X`."""
    origin: Origin
    image: Name | None = None
    release: Name | None = None
    """Name of the deployed llm-d release in the catalogue."""
    attention_backend: Name | None = None
    quick_reduce: Name | None = None
    """Quantization of all-reduce between a server's GPUs (vLLM's quick-reduce); `NONE` means not quantized."""
    block_size: int | None = None
    """Tokens per block of KV cache (vLLM's `--block-size`)."""
    router_profile: Name | None = None
    """Value of `router.profile` in the stack file; `none` if there was no router."""
    draft_tokens: int | None = None
    """Tokens that servers draft for each sequence in a step; None without speculative decoding, or if unknown."""
    topology: Name | None = None
    """Short form of the topology, such as `8p-tp1-4d-tp2`: the servers behind one router, of which a deployment has
    `copies`.
    """
    copies: Positive = 1
    tensor_parallel_size: Positive | None = None
    """Tensor parallel size of the server, if `subject` is one role."""
    data_parallel_size: Positive | None = None
    """Data-parallel ranks of the server, if `subject` is one role; a row without it means 1."""
    expert_parallel: bool | None = None
    """Whether each GPU of the server holds whole experts, if `subject` is one role; a row without it means false."""
    nodes: Positive | None = None
    """Nodes that the server spans, if `subject` is one role; a row without it means 1."""
    gpus_counted: Positive
    """Number of GPUs that servers use, the divisor of rates per GPU."""
    gpus_reserved: Count | None = None
    """Number of GPUs that pods request; larger than `gpus_counted` if some of the GPUs are idle."""
    input_tokens: Amount
    """Mean prompt length in tokens (ISL)."""
    output_tokens: Amount
    """Mean output length in tokens (OSL)."""
    arrival: Arrival = "closed"
    concurrency: Amount | None = None
    """Requests in flight: the set number in a closed loop, else the measured mean."""
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
    """Maximum number of sequences that one server runs at once (vLLM's `--max-num-seqs`)."""
    prefix_cache_hit_share: Amount | None = None
    goodput_share: Amount | None = None
    """Share of requests that met the run's latency targets."""
    price_usd_per_hour: Amount | None = None
    notes: tuple[Note, ...] = ()

    @property
    def conditions(self) -> dict[str, str | int | None]:
        """Values of the fields in `CONDITIONS` by name; None for an unknown value."""
        return {name: getattr(self, name) for name in CONDITIONS}

    @property
    def nothing_measured(self) -> str | None:
        """Reason why the row is no measurement: no request was sent, the run had no duration, or all rates are 0
        without a failure. None for a valid measurement, which includes runs in which all requests failed.
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
        """Output tokens per second divided by `gpus_counted`, the number of GPUs that servers use."""
        return None if self.output_tokens_per_s is None else self.output_tokens_per_s / self.gpus_counted

    @property
    def tpsu(self) -> float | None:
        """Output tokens per second divided by the number of requests in flight (users)."""
        if self.output_tokens_per_s is None or not self.concurrency:
            return None
        return self.output_tokens_per_s / self.concurrency

    @property
    def tpsu_decode(self) -> float | None:
        """Output tokens per second of one request after its first token: 1 / mean TPOT."""
        return None if not self.tpot_ms.mean else 1000 / self.tpot_ms.mean

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """Price of a million output tokens at this load, in USD."""
        return usd_per_million_tokens(self.price_usd_per_hour, self.output_tokens_per_s)
