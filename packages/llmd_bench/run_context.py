"""Circumstances that a benchmark must know of where it runs, beside what it was asked to do."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from llmd_base.row import Basis
from pydantic import TypeAdapter

VARIABLE = "LLMD_OKE_CIRCUMSTANCES"
"""Set by a rehearsal in its pods, and by nothing else: no manifest has it."""


@dataclass(frozen=True)
class RunContext:
    """Circumstances of a run: real servers on the wall clock, unless it is said otherwise.

    `time_scale` is wall seconds for a second of model time, `simulated` lists what was not real, `ran` has the versions
    of programs that ran instead of the release's own, and `bounds` are the models, by repository, whose simulated
    servers take times that were fitted to nothing.
    """

    time_scale: float = 1.0
    basis: Basis = Basis.MEASURED
    simulated: tuple[str, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict[str, str])
    bounds: tuple[str, ...] = ()

    def basis_of(self, model: str) -> Basis:
        """Return the kind of a model's figures; the model is named by its repository."""
        return Basis.BOUND if model in self.bounds else self.basis

    def to_text(self) -> str:
        """Return the value of the environment variable."""
        return json.dumps(asdict(self), sort_keys=True)


_CONTEXT = TypeAdapter(RunContext)


def from_environment(environment: Mapping[str, str]) -> RunContext:
    """Return the context that a pod's environment tells; real servers where it tells none."""
    text = environment.get(VARIABLE)
    return from_text(text) if text else RunContext()


def from_text(text: str) -> RunContext:
    """Return the context that `to_text` wrote."""
    return _CONTEXT.validate_json(text)
