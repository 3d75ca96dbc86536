"""What is wrong with stages and a workload, before anything is sent."""

from collections.abc import Iterator, Sequence

from llmd_oke.bench.load.stage import Stage
from llmd_oke.bench.workload.lengths import Fixed, Length
from llmd_oke.bench.workload.shapes import ClosedLoop, LoadShape, Trace
from llmd_oke.bench.workload.workloads import Workload
from llmd_oke.errors import Problem, Refused

VERDICT = "the load can't be sent"

MOST_REQUESTS_PER_S = 10_000.0
"""For each process: beyond what any sends, so that a slip of the pen does not run for hours."""


def check(stages: Sequence[Stage], workload: Workload, processes: int) -> None:
    """Raise `Refused` with everything that is wrong; `processes` is of all generators together."""
    problems = [
        *(
            problem
            for number, stage in enumerate(stages)
            for problem in _of_stage(f"stages[{number}]", stage, workload, processes)
        ),
        *_of_length("input_tokens", workload.input_tokens),
        *_of_length("output_tokens", workload.output_tokens),
        *_of_sharing(workload),
    ]
    if processes < 1:
        problems.append(Problem("processes", processes, "at least 1", "someone has to send"))
    if problems:
        raise Refused(problems, VERDICT)


def _of_stage(path: str, stage: Stage, workload: Workload, processes: int) -> Iterator[Problem]:
    if not isinstance(stage.shape, Trace) and stage.requests is None and stage.duration_s is None:
        yield Problem(path, str(stage.shape), "requests, duration, or both", "it would never end")
    for name, value in (("requests", stage.requests), ("duration_s", stage.duration_s)):
        if value is not None and value <= 0:
            yield Problem(f"{path}.{name}", value, "more than 0", "nothing would be sent")
    yield from _of_shape(f"{path}.shape", stage.shape, MOST_REQUESTS_PER_S * max(processes, 1))
    conversations = workload.conversations
    if conversations and isinstance(stage.shape, ClosedLoop) and stage.shape.concurrency > conversations.at_a_time:
        yield Problem(
            "conversations.at_a_time",
            conversations.at_a_time,
            f"at least {stage.shape.concurrency}",
            f"{stage.shape.concurrency} users would wait for each other's turns",
        )


def _of_shape(path: str, shape: LoadShape, most_per_s: float) -> Iterator[Problem]:
    if isinstance(shape, ClosedLoop):
        if shape.concurrency < 1:
            yield Problem(path, str(shape), "at least 1 user", "nothing would be sent")
    elif isinstance(shape, Trace):
        if not shape.entries:
            yield Problem(path, str(shape), "a trace with requests", "nothing would be sent")
    elif not 0 < shape.requests_per_s < float("inf"):
        yield Problem(path, str(shape), "a rate above 0", "nothing would be sent")
    elif shape.requests_per_s > most_per_s:
        why = f"a process of the generator can't send more than {MOST_REQUESTS_PER_S:g} requests/s"
        yield Problem(path, str(shape), f"at most {most_per_s:g} requests/s, or more processes", why)


def _of_length(path: str, length: Length) -> Iterator[Problem]:
    if isinstance(length, Fixed):
        if length.tokens < 1:
            yield Problem(path, length.tokens, "at least 1 token", "vLLM refuses an empty prompt or answer")
        return
    if length.mean <= 0 or length.stddev < 0 or not 1 <= length.least <= length.most:
        yield Problem(
            path, str(length), "a mean above 0, a deviation of at least 0, 1 <= least <= most", "no such lengths"
        )


def _of_sharing(workload: Workload) -> Iterator[Problem]:
    prefix, conversations = workload.prefix, workload.conversations
    if prefix and min(prefix.groups, prefix.tokens) < 1:
        yield Problem("prefix", prefix, "at least 1 group and 1 token", "there would be no prefix")
    if conversations and min(conversations.at_a_time, conversations.turns) < 1:
        yield Problem("conversations", conversations, "at least 1 at a time and 1 turn", "nothing would be said")
