"""Texts of requests, and the moments at which they are sent: prompts, lengths, shared prefixes, conversations,
arrivals.

Prompts have a known length, and no cache has seen them. They are text, not token ids: the endpoint picker reads the
prompt of a completion as a string. Gateway API inference extension 1.4 parses only a string and 1.5 a string or a list
of strings (`CompletionsRequest` in pkg/epp/framework/interface/scheduling/types.go); a list of numbers is answered with
400 before any server sees it. Its prefix scorer and llm-d's `prefix-based-pd-decider` then count a token for each 4
characters. So a prompt is made of common words of three letters, each after a space: 4 characters to the endpoint
picker, and as a rule one token to a model, whose vocabulary holds such words whole. The server's own count is what is
reported.
"""

import itertools
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

LONGEST_TOKENS = 1_000_000
"""Above every context length in use: a draw beyond it is a mistake of the parameters."""


@dataclass(frozen=True)
class Fixed:
    """Length that is always the same."""

    tokens: int

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True)
class Normal:
    """A normal distribution, rounded and cut to `least`..`most`; the cut moves mean and deviation."""

    mean: float
    stddev: float
    least: int = 1
    most: int = LONGEST_TOKENS

    def __str__(self) -> str:
        return f"normal:{self.mean:g},{self.stddev:g}"


@dataclass(frozen=True)
class LogNormal:
    """A lognormal distribution, as lengths of real prompts have; `mean` and `stddev` are of the tokens, not of logs."""

    mean: float
    stddev: float
    least: int = 1
    most: int = LONGEST_TOKENS

    def __str__(self) -> str:
        return f"lognormal:{self.mean:g},{self.stddev:g}"


Length = Fixed | Normal | LogNormal


def draw(length: Length, random: Random) -> int:
    """Draw one length, in tokens."""
    if isinstance(length, Fixed):
        return length.tokens
    if isinstance(length, Normal):
        value = random.gauss(length.mean, length.stddev)
    else:  # the logarithm's moments follow from those of the value
        variance = math.log1p((length.stddev / length.mean) ** 2)
        value = random.lognormvariate(math.log(length.mean) - variance / 2, math.sqrt(variance))
    return min(max(round(value), length.least), length.most)


CHARACTERS_PER_TOKEN = 4
"""Characters of a token in the endpoint picker's estimate (`averageCharactersPerToken` in llm-d and the inference
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
"""128 words, so that one random byte picks a word with even odds."""

_SPACED = tuple(f" {WORDS[byte % len(WORDS)]}" for byte in range(256))


@dataclass(frozen=True)
class PromptSource:
    """Source of the prompt of each request of a run.

    The same `seed` and `run` give the same prompts. `run` names one run of the benchmark: another run's prompts
    share no prefix with these (of 16 words, the chance is 1 in 10^33).
    """

    input_tokens: int
    seed: int
    run: str

    def prompt(self, index: int | str) -> str:
        """Return the text of request `index`: `input_tokens` words, 4 characters each."""
        chosen = Random(f"{self.seed}/{self.run}/{index}").randbytes(self.input_tokens)  # noqa: S311 - load, not secrets
        return "".join(map(_SPACED.__getitem__, chosen))


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each of whom sends the next request when the answer to the last one has ended."""

    concurrency: int

    def __str__(self) -> str:
        return f"closed:{self.concurrency}"


@dataclass(frozen=True)
class ConstantRate:
    """Requests at even intervals, whether earlier ones have been answered or not."""

    requests_per_s: float

    def __str__(self) -> str:
        return f"constant:{self.requests_per_s:g}"


@dataclass(frozen=True)
class PoissonRate:
    """Requests of independent users: gaps drawn from an exponential distribution."""

    requests_per_s: float
    seed: int = 0

    def __str__(self) -> str:
        return f"poisson:{self.requests_per_s:g}"


@dataclass(frozen=True)
class TraceEntry:
    """One recorded request: seconds after the first one, and its lengths where the trace tells them."""

    at_s: float
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class Trace:
    """Requests at recorded times, in ascending order. Recorded lengths are used in place of the workload's."""

    entries: tuple[TraceEntry, ...]
    name: str = "trace"

    def __str__(self) -> str:
        return f"trace:{self.name}"


@dataclass(frozen=True)
class RateProfile:
    """A load that changes: requests per second at moments in seconds, ascending from 0, and on a line between them."""

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def duration_s(self) -> float:
        """Seconds from the first point to the last."""
        return self.points[-1][0]

    @property
    def peak_per_s(self) -> float:
        """Highest rate, in requests per second."""
        return max(rate for _, rate in self.points)

    def rate_per_s(self, at_s: float) -> float:
        """Return the requests per second at a moment; before the first and after the last those of the first and the
        last.
        """
        for (from_s, low), (to_s, high) in itertools.pairwise(self.points):
            if at_s < to_s:
                return low + (high - low) * max(0.0, at_s - from_s) / (to_s - from_s)
        return self.points[-1][1]

    def faster(self, factor: float) -> "RateProfile":
        """Return the profile with the same rates in so much less time."""
        return RateProfile(self.name, tuple((at_s / factor, rate) for at_s, rate in self.points))

    def trace(self, seed: int = 0) -> Trace:
        """Draw requests of independent users at these rates: of those at the highest rate, each is kept with the share
        that its moment has of it.
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
    """Return the moments at which requests of an open loop are sent, in seconds of model time after its start.

    Only a trace ends.
    """
    if isinstance(shape, Trace):
        return (entry.at_s for entry in shape.entries)
    if isinstance(shape, ConstantRate):
        return (count / shape.requests_per_s for count in itertools.count())
    random = Random(shape.seed)  # noqa: S311 - load, not secrets
    return itertools.accumulate((random.expovariate(shape.requests_per_s) for _ in itertools.count()), initial=0.0)


@dataclass(frozen=True)
class SharedPrefix:
    """Each prompt begins with one of `groups` texts of `tokens`, as system prompts do; they come before its length."""

    groups: int
    tokens: int


@dataclass(frozen=True)
class Conversations:
    """`at_a_time` conversations of `turns` turns; a turn has all earlier questions and the answers that really came.

    A turn waits for the answer before it, so that it may be sent later than it was due; that is not counted as slip.
    """

    at_a_time: int
    turns: int


@dataclass(frozen=True, slots=True)
class Position:
    """Place of a request in its conversation; `previous` is the request of the turn before it."""

    conversation: int
    turn: int = 0
    previous: int | None = None
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class RequestText:
    """Text that one request adds, with that text's tokens and the number of tokens to answer with."""

    text: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class RequestWorkload:
    """Source of each request's text and lengths.

    Lengths follow from `seed` alone, so that two runs can have the same; texts follow from `run` too, so that no run
    finds another one's prompts in a cache.
    """

    input_tokens: Length
    output_tokens: Length
    seed: int = 0
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    prefix: SharedPrefix | None = None
    conversations: Conversations | None = None

    def place(self, index: int) -> Position:
        """Return the place of request `index` in the conversations; alone where there are none."""
        if self.conversations is None:
            return Position(index)
        at_a_time, turns = self.conversations.at_a_time, self.conversations.turns
        turn = index // at_a_time % turns
        first = index // at_a_time // turns
        previous = index - at_a_time if turn else None
        return Position(first * at_a_time + index % at_a_time, turn, previous, turn == turns - 1)

    def question(self, index: int, *, label: str = "", recorded: TraceEntry | None = None) -> RequestText:
        """Return the text and lengths of request `index` of the load `label`; `recorded` lengths go before the
        workload's.
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
