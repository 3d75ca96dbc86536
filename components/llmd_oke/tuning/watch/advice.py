"""What to do where an assumption does not hold."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llmd_oke.tuning.search.question import Targets
from llmd_oke.tuning.watch import seen as figures
from llmd_oke.tuning.watch.assumptions import Kind, tolerances
from llmd_oke.tuning.watch.judging import Judged
from llmd_oke.tuning.watch.seen import Seen


@dataclass(frozen=True)
class Place:
    """Whose assumptions they are; `name` only where the stack has several models."""

    stack: str
    name: str | None
    targets: Targets

    def command(self, *words: str) -> str:
        """A command of the tuner about it, ready to be copied."""
        about = ["--stack", self.stack, *(["--name", self.name] if self.name else [])]
        return shlex.join(["llmd-oke", "tune", words[0], *about, *words[1:]])


@dataclass(frozen=True)
class Advice:
    """Why something has to be done, and the command that begins it."""

    why: str
    command: str


def advice(judged: Sequence[Judged], seen: Seen, place: Place) -> Iterator[Advice]:
    """One for each cause; none where all assumptions hold, or where no request came."""
    if not seen.answered:
        return
    off = [each.assumption for each in judged if each.off]
    remote = [each for each in off if each.figure is figures.REMOTE_PREFILL]
    if any(each.kind is Kind.LOAD for each in off):
        yield Advice(_of_load(seen), rank_command(seen, place))
    elif any(each.kind is Kind.LIMIT and each not in remote for each in off):
        yield Advice("The load is the assumed one, and the servers have no room for it.", rank_command(seen, place))
    if any(each.kind is Kind.FORECAST for each in off):
        why = "The load is the assumed one, and the forecast is off: measure the servers again, then rank."
        yield Advice(why, place.command("run"))
    if remote:
        why = "Decode servers compute prompts themselves: the smoke benchmark says which part is at fault."
        yield Advice(why, shlex.join(["llmd-oke", "smoke", "--stack", place.stack]))


def rank_command(seen: Seen, place: Place) -> str:
    """`tune rank` for what was seen, with the targets as they were; without lengths where few requests told them."""
    words: list[str] = []
    if seen.input_tokens and seen.output_tokens and seen.answered >= tolerances().latency_requests:
        words += ["--workload", f"{max(1, round(seen.input_tokens))}/{max(1, round(seen.output_tokens))}"]
    if seen.prefix_cache_hit_share and seen.prefix_cache_hit_share > tolerances().prefix_cache_share:
        words += ["--prefix-hits", f"{seen.prefix_cache_hit_share:.2g}"]
    rate = float(f"{seen.requests_per_s:.3g}") if seen.requests_per_s else place.targets.requests_per_s
    slo = str(replace(place.targets, requests_per_s=rate))
    return place.command("rank", *words, *(["--slo", slo] if slo else []))


def _of_load(seen: Seen) -> str:
    why = "The load is another one than assumed: rank for what is seen."
    hits = seen.prefix_cache_hit_share
    if hits is not None and hits > tolerances().prefix_cache_share:
        why += f" Prefix caches answer {hits:.0%} of prompt tokens; the ranking then counts on as much."
    return why
