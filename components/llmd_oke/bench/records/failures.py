"""What went wrong in a run: kinds of failure with their number, one example of each and what it usually means."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from llmd_oke.bench.records.request import Failure, RequestRecord

_MEANING = {
    Failure.ADDRESS: "the name has no address here",
    Failure.CONNECTION: "nothing answers there, or it restarted",
    Failure.TLS: "the certificate is not trusted, or the port does not speak TLS",
    Failure.SERVER: "the server gave up while it answered",
    Failure.CUT: "a server or proxy ended while it answered",
    Failure.TIMEOUT: "the answer took longer than the limit",
}

_MEANING_OF_STATUS = {
    HTTPStatus.UNAUTHORIZED: "credentials are missing or wrong",
    HTTPStatus.FORBIDDEN: "these credentials may not do this",
    HTTPStatus.NOT_FOUND: "no such model, or a wrong path in the address",
    HTTPStatus.TOO_MANY_REQUESTS: "the router or server sheds load",
    HTTPStatus.SERVICE_UNAVAILABLE: "no server is ready",
}


@dataclass(frozen=True)
class FailureClass:
    """One kind of failure: `example` is the first one's text, `longest_retry_after_s` the longest wait asked for."""

    kind: str
    count: int
    meaning: str
    example: str
    first_s: float
    longest_retry_after_s: float | None = None

    def __str__(self) -> str:
        wait = "" if self.longest_retry_after_s is None else f", Retry-After up to {self.longest_retry_after_s:g} s"
        return f"{self.count} x {self.kind} ({self.meaning}{wait}), first at {self.first_s:.1f} s: {self.example}"


def classify(records: Sequence[RequestRecord]) -> list[FailureClass]:
    """The kinds of failure among `records`, the most frequent first."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in sorted(records, key=lambda each: each.started_s):
        if record.failure is not None:
            groups.setdefault(_kind(record), []).append(record)
    return sorted((_class(kind, group) for kind, group in groups.items()), key=lambda found: -found.count)


def _kind(record: RequestRecord) -> str:
    return f"HTTP {record.status}" if record.failure is Failure.STATUS else str(record.failure)


def _class(kind: str, group: Sequence[RequestRecord]) -> FailureClass:
    waits = [record.retry_after_s for record in group if record.retry_after_s is not None]
    return FailureClass(
        kind, len(group), _meaning(group[0]), group[0].error or "", group[0].started_s, max(waits, default=None)
    )


def _meaning(record: RequestRecord) -> str:
    if record.failure is None or record.failure is not Failure.STATUS:
        return _MEANING.get(record.failure or Failure.SERVER, "")
    status = record.status or 0
    default = "the server failed" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "the request is refused"
    return _MEANING_OF_STATUS.get(HTTPStatus(status), default) if status in set(HTTPStatus) else default
