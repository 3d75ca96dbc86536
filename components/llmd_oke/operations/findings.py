"""What a look at the tenancy found."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How it is: `unknown` where OCI gave no answer."""

    FINE = "fine"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `path` is where in the stack file, `value` what OCI says."""

    check: str
    path: str
    verdict: Verdict
    value: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def exit_code(findings: Sequence[Finding]) -> int:
    """0 where nothing speaks against an update, 1 where something does."""
    return int(any(finding.verdict is Verdict.PROBLEM for finding in findings))
