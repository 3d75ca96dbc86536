"""Accuracy evaluations: packages that run published ones, and the floors that models must keep."""

from functools import cache
from typing import Literal

from llmd_oke.catalogue.files import Entry, required_entry, values_folder

BUILTIN = "builtin"
"""The name of the kit's own set."""


class Floor(Entry):
    """The least score, as a share of right answers, and where it comes from."""

    score: float
    source: str


class EvalPackage(Entry):
    """A published evaluation that runs by its own package, in a Job."""

    requirements: str
    """Hashed lock of the package and all it needs, a file beside this one."""
    reader: Literal["gpt-oss", "lm-eval"]
    """Whose result files it leaves."""
    program: tuple[str, ...]
    """Words of its command; `{…}` is filled in from the deployment."""
    result_files: str
    """Pattern of the files that it leaves its results in."""
    questions: int
    """How many answers it judges, for progress and cost."""
    source: str


class Evals(Entry):
    """`values/evals/evals.yaml`: floors by evaluation and model, and packages by evaluation."""

    floors: dict[str, dict[str, Floor]]
    packages: dict[str, EvalPackage]

    def floor(self, name: str, model: str) -> Floor | None:
        """The floor of a model in an evaluation, or None where the kit knows none."""
        floors = self.floors.get(name, {})
        return floors.get(model) or floors.get("any")


@cache
def evals() -> Evals:
    """The figures of `values/evals/evals.yaml`."""
    return required_entry("evals", "evals", Evals)


def requirements(package: EvalPackage) -> str:
    """The hashed lock that a package is installed from."""
    return (values_folder() / "evals" / package.requirements).read_text(encoding="utf-8")
