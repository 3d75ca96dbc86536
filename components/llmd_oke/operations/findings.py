"""Findings of checks before an update, and the exit code of a command that reports them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from llmd_oke.access.oci_client import OciError


class Verdict(StrEnum):
    """Verdict of a check before an update; `unknown` if OCI or another service gave no answer."""

    FINE = "fine"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """Result of one check before an update: the checked `path` of the stack file, the `value` found in OCI or
    elsewhere, and the verdict.
    """

    check: str
    path: str
    verdict: Verdict
    value: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        return asdict(self)


def check_findings(name: str, path: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run a check; return its findings. If OCI refuses a request or doesn't answer, the findings so far are returned,
    and one with the verdict `unknown` for `name` and `path`.
    """
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except OciError as error:
        remedy = "Is the sign-in right, and may this user read it?" if error.status in {401, 403, 404} else "Try again."
        findings.append(Finding(name, path, Verdict.UNKNOWN, error.message, remedy))
    return findings


def exit_code(findings: Sequence[Finding]) -> int:
    """Return the exit code for these findings: 1 if one has the verdict `problem`, otherwise 0."""
    return int(any(finding.verdict is Verdict.PROBLEM for finding in findings))
