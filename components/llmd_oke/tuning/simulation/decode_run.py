"""Decode steps of one batch that nothing interrupts, as one stretch of time.

Between two changes of its batch a server does the same at each step, but for contexts that grow by a token. Step j
(from 0) takes `first_s + j growth_s`, so that the time of any number of steps is closed form and none is simulated.
"""

import math

from llmd_oke.tuning.servers.latency import ServerLatency


class DecodeRun:
    """`steps` decode steps of `batch` sequences that begin at `start_s` with `context_tokens` in all."""

    __slots__ = ("batch", "first_s", "growth_s", "start_s", "steps")

    def __init__(self, latency: ServerLatency, start_s: float, batch: int, context_tokens: int, steps: int) -> None:
        context = context_tokens / batch
        self.start_s = start_s
        self.batch = batch
        self.steps = steps
        self.first_s = latency.decode_step_s(batch, context)
        # Over the whole run, not one token: the model bends where contexts outgrow a sliding window.
        self.growth_s = (latency.decode_step_s(batch, context + steps) - self.first_s) / steps

    @property
    def end_s(self) -> float:
        """When the last step ends."""
        return self.start_s + self._time_s(self.steps)

    def steps_until(self, time_s: float) -> int:
        """The number of steps, at least one, after which `time_s` is reached."""
        elapsed_s, growth_s = time_s - self.start_s, self.growth_s
        linear_s = self.first_s - growth_s / 2
        root_s = math.sqrt(linear_s * linear_s + 2 * growth_s * elapsed_s)
        steps = max(1, math.ceil(2 * elapsed_s / (linear_s + root_s)))
        return steps if self._time_s(steps) >= elapsed_s else steps + 1

    def boundary_s(self, time_s: float) -> float:
        """When the step ends that runs at `time_s`."""
        return self.start_s + self._time_s(self.steps_until(time_s))

    def _time_s(self, steps: int) -> float:
        """Of the first `steps` steps."""
        return steps * (self.first_s + self.growth_s * (steps - 1) / 2)
