"""Findings of checks before an update, and the exit code that they give."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from llmd_oke.access.oci_client import OciError


class Verdict(StrEnum):
    """Verdict on a finding: `unknown` where OCI gave no answer."""

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
        """Return the finding as plain data."""
        return asdict(self)


def check_findings(name: str, path: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of a check, as far as it came, and that OCI did not answer if it did not."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except OciError as error:
        remedy = "Is the sign-in right, and may this user read it?" if error.status in {401, 403, 404} else "Try again."
        findings.append(Finding(name, path, Verdict.UNKNOWN, error.message, remedy))
    return findings


def exit_code(findings: Sequence[Finding]) -> int:
    """0 where nothing speaks against an update, 1 where something does."""
    return int(any(finding.verdict is Verdict.PROBLEM for finding in findings))
