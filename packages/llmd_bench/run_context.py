"""Environment of a benchmark run: time scale, basis of the figures, and simulated parts."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from llmd_base.row import Basis
from pydantic import TypeAdapter

VARIABLE = "LLMD_OKE_CIRCUMSTANCES"
"""Environment variable with the `RunContext` of a pod. Only rehearsals set it in their pods; no manifest contains it.
"""


@dataclass(frozen=True)
class RunContext:
    """Environment of a benchmark run; the defaults describe real servers on the wall clock.

    Attributes:
        time_scale: wall seconds per simulated second.
        basis: basis of the figures.
        simulated: names of the simulated parts.
        ran: versions of programs that ran instead of the release's own, by program.
        bounds: repositories of the models whose simulated servers aren't fitted to measurements, so that their figures
            are bounds.
    """

    time_scale: float = 1.0
    basis: Basis = Basis.MEASURED
    simulated: tuple[str, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict[str, str])
    bounds: tuple[str, ...] = ()

    def basis_of(self, model: str) -> Basis:
        """Return the basis of the figures of a model, given by its repository."""
        return Basis.BOUND if model in self.bounds else self.basis

    def to_text(self) -> str:
        """Return the context as JSON text, the value of the environment variable."""
        return json.dumps(asdict(self), sort_keys=True)


_CONTEXT = TypeAdapter(RunContext)


def from_environment(environment: Mapping[str, str]) -> RunContext:
    """Return the context in a pod's environment; the default context if the variable isn't set."""
    text = environment.get(VARIABLE)
    return from_text(text) if text else RunContext()


def from_text(text: str) -> RunContext:
    """Return the context from the JSON text that `to_text` wrote."""
    return _CONTEXT.validate_json(text)
