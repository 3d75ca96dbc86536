"""Requests that ended, made up for tests."""

from llmd_pods.records import Failure, RequestRecord


def request(index=0, started_s=0.0, first_s=0.5, gap_s=0.1, tokens=6, events=None, **changes) -> RequestRecord:
    times = tuple(first_s + gap_s * number for number in range(events or tokens))
    fields = {"latency_s": times[-1], "event_times_s": times, "input_tokens": 100, "output_tokens": tokens}
    return RequestRecord(index=index, started_s=started_s, **{**fields, "counted_by_server": True, **changes})


def failed(index=9, **changes) -> RequestRecord:
    return RequestRecord(
        index=index, started_s=0, latency_s=0.1, failure=Failure.STATUS, error="HTTP 503: x", **changes
    )
