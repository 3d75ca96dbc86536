"""One load from the program that asks for it, with a record of what happened to each request.

It never raises for a request that fails; a failure is a record with its kind and text. Long or fast loads are better
run as `stages`, in processes of their own.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.generator.connections import CONNECT_TIMEOUT_S
from llmd_oke.bench.generator.dialogues import Dialogues
from llmd_oke.bench.generator.driving import ClosedDriver, Driver, OpenDriver
from llmd_oke.bench.generator.sending import Sender
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.workload.prompts import PromptSource
from llmd_oke.bench.workload.shapes import ClosedLoop, LoadShape, arrivals_s
from llmd_oke.bench.workload.workloads import Question

__all__ = ["CONNECT_TIMEOUT_S", "Load", "Target", "run_load"]


@dataclass(frozen=True)
class Load:
    """What is sent.

    `request_timeout_s` is wall time; rates of `shape` are in model time (`time_scale` wall seconds a second).
    """

    requests: int
    shape: LoadShape
    prompts: PromptSource
    output_tokens: int
    request_timeout_s: float = 300.0
    time_scale: float = 1.0
    label: str = ""
    """Name of this load within its run: loads with different labels have different prompts."""

    def question(self, index: int) -> Question:
        """What request `index` asks."""
        return Question(self.prompts.prompt(f"{self.label}{index}"), self.prompts.input_tokens, self.output_tokens)


async def run_load(
    target: Target, load: Load, *, limit_s: float, on_record: Callable[[RequestRecord], None] | None = None
) -> list[RequestRecord]:
    """Send the load and return a record for each request that was sent, in the order in which they ended, in wall time.

    After `limit_s` of wall time no request is started and those in flight end as timed out, so there may be fewer
    records than requests.

    Raises:
        KitError: the target's URL is none.
    """
    records: list[RequestRecord] = []

    def keep(record: RequestRecord) -> None:
        records.append(record)
        if on_record:
            on_record(record)

    began_s = perf_counter()
    sender = Sender(
        target,
        Dialogues(load.question),
        keep,
        origin_s=began_s,
        deadline_s=began_s + limit_s,
        request_timeout_s=load.request_timeout_s,
    )
    try:
        await _driver(load, sender).run()
    finally:
        sender.abandon()
        await asyncio.sleep(0)
    return records


def _driver(load: Load, sender: Sender) -> Driver:
    if isinstance(load.shape, ClosedLoop):
        users = min(load.shape.concurrency, load.requests)
        return ClosedDriver(sender, iter(range(load.requests)), users, stop_s=sender.deadline_s)
    moments = itertools.islice(arrivals_s(load.shape), load.requests)
    return OpenDriver(sender, ((index, sender.origin_s + at * load.time_scale) for index, at in enumerate(moments)))
