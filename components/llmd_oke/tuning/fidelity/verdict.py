"""Whether mean errors are within a limit (`--max-error`)."""

from dataclasses import dataclass
from typing import Any

from llmd_oke.tuning.fidelity.report import Errors, Group, Report


@dataclass(frozen=True)
class Verdict:
    """The means of counted groups that are beyond `most_error`, a share; `counted`: whether there are any to judge."""

    most_error: float
    counted: bool
    beyond: tuple[tuple[Group, Errors], ...]

    @property
    def passed(self) -> bool:
        """Whether there was something to judge, and all of it is within the limit."""
        return self.counted and not self.beyond

    def __str__(self) -> str:
        if not self.counted:
            return "There is no measurement whose errors count, so that --max-error has nothing to hold."
        if not self.beyond:
            return f"No mean error is above {self.most_error:.1%}."
        lines = [f"  {group.title}: {errors.title}, {errors.mean_absolute:.1%}" for group, errors in self.beyond]
        return "\n".join((f"Mean errors above {self.most_error:.1%}:", *lines))

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "passed": self.passed,
            "max_error": self.most_error,
            "why": str(self),
            "beyond": [
                {
                    "standing": group.standing.title,
                    "subject": errors.subject,
                    "metric": errors.metric.name,
                    "mean_absolute_error": errors.mean_absolute,
                }
                for group, errors in self.beyond
            ],
        }


def judged(report: Report, most_error: float) -> Verdict:
    """The report held against a mean absolute error, a share."""
    return Verdict(most_error, report.counted, tuple(report.beyond(most_error)))
