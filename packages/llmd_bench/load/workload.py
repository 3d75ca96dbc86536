"""Texts and times of requests: prompts, lengths, shared prefixes, conversations, arrivals.

Prompts have a known length and are in no cache. They are text, not token IDs, because the endpoint picker parses the
prompt of a completion as a string: Gateway API inference extension 1.4 accepts a string, 1.5 a string or a list of
strings (`CompletionsRequest` in pkg/epp/framework/interface/scheduling/types.go); a list of numbers is answered with
400 before it reaches a server. The extension's prefix scorer and llm-d's `prefix-based-pd-decider` then count one token
for every 4 characters. A prompt therefore consists of common three-letter words, each after a space: 4 characters to
the endpoint picker, and usually one token to a model, whose vocabulary contains such words. Reports contain the
server's own token count.
"""

import itertools
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

LONGEST_TOKENS = 1_000_000
"""Maximum drawn length in tokens, above every context length in use; larger values are errors of the parameters."""


@dataclass(frozen=True)
class Fixed:
    """Constant length in tokens."""

    tokens: int

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True)
class Normal:
    """Normal distribution of lengths in tokens, rounded and clamped to `least`..`most`; clamping changes mean and
    deviation.
    """

    mean: float
    stddev: float
    least: int = 1
    most: int = LONGEST_TOKENS

    def __str__(self) -> str:
        return f"normal:{self.mean:g},{self.stddev:g}"


@dataclass(frozen=True)
class LogNormal:
    """Lognormal distribution of lengths, which lengths of real prompts resemble; `mean` and `stddev` are those of the
    tokens, not of their logarithms.
    """

    mean: float
    stddev: float
    least: int = 1
    most: int = LONGEST_TOKENS

    def __str__(self) -> str:
        return f"lognormal:{self.mean:g},{self.stddev:g}"


Length = Fixed | Normal | LogNormal


def draw(length: Length, random: Random) -> int:
    """Draw one length in tokens at random."""
    if isinstance(length, Fixed):
        return length.tokens
    if isinstance(length, Normal):
        value = random.gauss(length.mean, length.stddev)
    else:  # the logarithm's moments follow from those of the value
        variance = math.log1p((length.stddev / length.mean) ** 2)
        value = random.lognormvariate(math.log(length.mean) - variance / 2, math.sqrt(variance))
    return min(max(round(value), length.least), length.most)


CHARACTERS_PER_TOKEN = 4
"""Characters per token in the endpoint picker's estimate (`averageCharactersPerToken` in llm-d and the inference
extension).
"""

_TEXT = """
the and for are but not you all any can had her was one our out day get has him his how man new now old see two way
who boy did its let put say she too use act add age ago aid air arm art ask bad bag bar bed big bit box buy car cat
cup cut dog dry due ear eat egg end eye far fed few fit fly fun gas got gap guy hit hot ice job key kid law lay led
leg lie lot low map may mix mom net nor odd off oil own pay pet pop ran raw red rid row run sad sea set sat sir sit
six sky son sun tax tea ten tie tip top try fix
"""

WORDS = tuple(_TEXT.split())
"""Words of prompts: 128, so that a random byte selects each word with the same probability."""

_SPACED = tuple(f" {WORDS[byte % len(WORDS)]}" for byte in range(256))


@dataclass(frozen=True)
class PromptSource:
    """Generator of the prompts of a run.

    Equal `seed` and `run` give equal prompts. Prompts of runs with different `run` share no prefix (the probability of
    16 equal words is 1 in 10^33).
    """

    input_tokens: int
    seed: int
    run: str

    def prompt(self, index: int | str) -> str:
        """Return the prompt of request `index`: `input_tokens` words of 4 characters."""
        chosen = Random(f"{self.seed}/{self.run}/{index}").randbytes(self.input_tokens)  # noqa: S311 - load, not secrets
        return "".join(map(_SPACED.__getitem__, chosen))


@dataclass(frozen=True)
class ClosedLoop:
    """Load of `concurrency` users, each of whom sends the next request when the answer to the last one has ended."""

    concurrency: int

    def __str__(self) -> str:
        return f"closed:{self.concurrency}"


@dataclass(frozen=True)
class ConstantRate:
    """Load of requests at even intervals, independent of the answers."""

    requests_per_s: float

    def __str__(self) -> str:
        return f"constant:{self.requests_per_s:g}"


@dataclass(frozen=True)
class PoissonRate:
    """Load of requests of independent users, with exponentially distributed intervals; `seed` is the random seed."""

    requests_per_s: float
    seed: int = 0

    def __str__(self) -> str:
        return f"poisson:{self.requests_per_s:g}"


@dataclass(frozen=True)
class TraceEntry:
    """Recorded request: time in seconds after the first request, and lengths in tokens; None if the trace
    lacks them.
    """

    at_s: float
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class Trace:
    """Load of requests at recorded times, in ascending order. Recorded lengths replace those of the workload."""

    entries: tuple[TraceEntry, ...]
    name: str = "trace"

    def __str__(self) -> str:
        return f"trace:{self.name}"


@dataclass(frozen=True)
class RateProfile:
    """Variable load, as points of time in seconds (ascending from 0) and requests per second, with straight lines
    between the points.
    """

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def duration_s(self) -> float:
        """Seconds from the first point of the profile to the last."""
        return self.points[-1][0]

    @property
    def peak_per_s(self) -> float:
        """Maximum rate of the profile in requests per second."""
        return max(rate for _, rate in self.points)

    def rate_per_s(self, at_s: float) -> float:
        """Return the rate in requests per second at a time; constant before the first and after the last point."""
        for (from_s, low), (to_s, high) in itertools.pairwise(self.points):
            if at_s < to_s:
                return low + (high - low) * max(0.0, at_s - from_s) / (to_s - from_s)
        return self.points[-1][1]

    def faster(self, factor: float) -> "RateProfile":
        """Return the profile compressed in time by `factor`, with the same rates."""
        return RateProfile(self.name, tuple((at_s / factor, rate) for at_s, rate in self.points))

    def trace(self, seed: int = 0) -> Trace:
        """Draw Poisson arrivals with this variable rate, by thinning: arrivals at the peak rate are kept with
        probability rate / peak rate.
        """
        random, peak, at_s, entries = Random(seed), self.peak_per_s, 0.0, list[TraceEntry]()  # noqa: S311 - load
        while peak > 0:
            at_s += random.expovariate(peak)
            if at_s >= self.duration_s:
                break
            if random.random() * peak < self.rate_per_s(at_s):
                entries.append(TraceEntry(at_s))
        return Trace(tuple(entries), self.name)


OpenLoop = ConstantRate | PoissonRate | Trace
LoadShape = ClosedLoop | OpenLoop


def arrivals_s(shape: OpenLoop) -> Iterator[float]:
    """Yield the times at which the requests of an open loop are due, in seconds after the start (simulated seconds in a
    rehearsal); endless except for a trace.
    """
    if isinstance(shape, Trace):
        return (entry.at_s for entry in shape.entries)
    if isinstance(shape, ConstantRate):
        return (count / shape.requests_per_s for count in itertools.count())
    random = Random(shape.seed)  # noqa: S311 - load, not secrets
    return itertools.accumulate((random.expovariate(shape.requests_per_s) for _ in itertools.count()), initial=0.0)


@dataclass(frozen=True)
class SharedPrefix:
    """Prefixes of prompts, such as system prompts: each prompt begins with one of `groups` texts of `tokens` tokens, in
    addition to its own length.
    """

    groups: int
    tokens: int


@dataclass(frozen=True)
class Conversations:
    """Conversations: `at_a_time` concurrent ones of `turns` turns each; a turn contains all earlier questions and their
    real answers.

    A turn waits for the answer before it and may therefore be sent after its due time; this delay doesn't count as
    slip.
    """

    at_a_time: int
    turns: int


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a request in its conversation; `previous` is the index of the request of the turn before it."""

    conversation: int
    turn: int = 0
    previous: int | None = None
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class RequestText:
    """Text that one request adds to its conversation, the text's length in tokens, and the length of the requested
    answer.
    """

    text: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class RequestWorkload:
    """Source of the text and the lengths of each request.

    Lengths depend on `seed` only, so that runs can have equal lengths; texts depend on `run` too, so that no run finds
    another run's prompts in a cache.
    """

    input_tokens: Length
    output_tokens: Length
    seed: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    prefix: SharedPrefix | None = None
    conversations: Conversations | None = None

    def place(self, index: int) -> Position:
        """Return the position of request `index` in the conversations; without conversations, every request is the only
        turn of a conversation of its own.
        """
        if self.conversations is None:
            return Position(index)
        at_a_time, turns = self.conversations.at_a_time, self.conversations.turns
        turn = index // at_a_time % turns
        first = index // at_a_time // turns
        previous = index - at_a_time if turn else None
        return Position(first * at_a_time + index % at_a_time, turn, previous, turn == turns - 1)

    def question(self, index: int, *, label: str = "", recorded: TraceEntry | None = None) -> RequestText:
        """Return the text and the lengths of request `index` of the load `label`; `recorded` lengths take precedence
        over the workload's.
        """
        random = Random(f"{self.seed}/{index}")  # noqa: S311 - load, not secrets
        input_tokens, output_tokens = draw(self.input_tokens, random), draw(self.output_tokens, random)
        if recorded:
            input_tokens = recorded.input_tokens or input_tokens
            output_tokens = recorded.output_tokens or output_tokens
        text = PromptSource(input_tokens, self.seed, self.run).prompt(f"{label}/{index}")
        place = self.place(index)
        if self.prefix is None or place.turn:
            return RequestText(text, input_tokens, output_tokens)
        choice = Random(f"{self.seed}/group/{place.conversation}")  # noqa: S311 - load, not secrets
        prefix = PromptSource(self.prefix.tokens, self.seed, self.run)
        begin = prefix.prompt(f"prefix {choice.randrange(self.prefix.groups)}")
        return RequestText(begin + text, self.prefix.tokens + input_tokens, output_tokens)
