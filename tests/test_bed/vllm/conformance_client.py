"""Answers of a server, in the form in which the list of conformance has them."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import httpx2
from llmd_rehearsal.plugin_values import is_list, is_map
from prometheus_client.parser import text_string_to_metric_families
from vllm_conformance import Case, Request

MODEL = "m"
ABSENT = "absent"
_COUNTED_WITHIN_S, _LOOK_S = 10.0, 0.02
_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def seen(case: Case, client: httpx2.Client, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the case looks at; counters may become what is `expected` shortly after the answer."""
    if case.see == "metric":
        return _metric(case, client)
    if case.request is None:
        raise AssertionError("only metrics are looked at without a request")
    if case.see == "counts":
        return _counts(case, case.request, client, expected)
    response = _send(case.request, client)
    match case.see:
        case "error":
            return _error(response)
        case "events":
            return {"status": response.status_code, "events": _events(response)}
        case "fields":
            return _fields(case, response)
        case _:
            return _values(case, response)


def _counts(case: Case, request: Request, client: httpx2.Client, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request adds. The simulator of llm-d counts beside its answers: that of the last one is awaited."""

    def counters() -> dict[str, float | None]:
        samples = _samples(client, tuple(case.vllm))
        return {name: samples.get(name) for name in case.vllm}

    ends_at = time.monotonic() + _COUNTED_WITHIN_S
    before, again = counters(), None
    while before != again and time.monotonic() < ends_at:
        time.sleep(_LOOK_S)
        before, again = counters(), before
    _send(request, client)
    ends_at = time.monotonic() + _COUNTED_WITHIN_S
    while True:
        counts = {name: ABSENT if value is None else value - (before[name] or 0) for name, value in counters().items()}
        if counts == expected or time.monotonic() > ends_at:
            return counts
        time.sleep(_LOOK_S)


def _send(request: Request, client: httpx2.Client) -> httpx2.Response:
    if request.body is None and request.text is None:
        return client.get(request.path, headers=request.headers)
    content = request.text
    if content is None:
        content = json.dumps({"model": MODEL, **(request.body or {})})
    headers = {"Content-Type": request.type, **request.headers}
    return client.post(request.path, content=content, headers=headers)


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _error(response: httpx2.Response) -> dict[str, Any]:
    body = _json(response)
    error = body.get("error") if is_map(body) else None
    if not is_map(error):
        return {"status": response.status_code}
    return {"status": response.status_code, **{key: error.get(key) for key in ("type", "param", "code")}}


def _stream(response: httpx2.Response) -> Iterator[tuple[str, Any]]:
    """The events of a stream: name, or nothing, and data."""
    for part in response.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line)
        if "data" in lines:
            data = lines["data"]
            yield lines.get("event", ""), data if data == "[DONE]" else json.loads(data)


def _events(response: httpx2.Response) -> list[str]:
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        return [f"no stream, {response.headers.get('Content-Type')}"]
    kinds = [name or _kind(data) for name, data in _stream(response)]
    return [kind for kind, _ in groupby(kinds)]


def _kind(data: Any) -> str:
    if data == "[DONE]":
        return "done"
    if "error" in data:
        return f"error {data['error'].get('code')} {data['error'].get('type')}"
    if not data.get("choices"):
        return "usage" if data.get("usage") else "nothing"
    choice = data["choices"][0]
    if choice.get("finish_reason"):
        return f"end {choice['finish_reason']}"
    return "role" if "role" in choice.get("delta", {}) else "token"


def _answer(case: Case, response: httpx2.Response) -> Any:
    """The body, or one event of a stream."""
    if case.event is None:
        return _json(response)
    events = [data for _, data in _stream(response) if data != "[DONE]"]
    return events[case.event] if -len(events) <= case.event < len(events) else None


def _fields(case: Case, response: httpx2.Response) -> dict[str, Any]:
    present = {path for path, _ in _leaves(_answer(case, response)) if path.startswith(case.under)}
    missing, more = sorted(set(case.fields) - present), sorted(present - set(case.fields))
    differences = {"missing": missing, "more": more}
    return {"status": response.status_code, **{name: paths for name, paths in differences.items() if paths}}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that is no object, by its way; of lists of objects the first element."""
    if is_map(value):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif is_list(value) and value and is_map(value[0]):
        yield from _leaves(value[0], f"{path}.0")
    elif path:
        yield path, value


def _values(case: Case, response: httpx2.Response) -> dict[str, Any]:
    body = _answer(case, response)
    own = {"status": response.status_code, "content": response.text}
    return {path: _at(body, path, own.get(path, ABSENT)) for path in case.vllm}


def _at(value: Any, path: str, default: Any) -> Any:
    for key in path.split("."):
        if is_list(value) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif is_map(value) and key in value:
            value = value[key]
        else:
            return default
    return _RANDOM.sub("UUID", value) if isinstance(value, str) else value


def _metric(case: Case, client: httpx2.Client) -> dict[str, Any]:
    name = (case.metric or "").removesuffix("_total")
    families = text_string_to_metric_families(_metric_lines(client, name))
    family = next((family for family in families if family.name == name and family.samples), None)
    if family is None:
        return {"type": ABSENT}
    labels = {label for sample in family.samples for label in sample.labels if label != "le"}
    return {"type": family.type, "labels": sorted(labels & set(case.some_labels) if case.some_labels else labels)}


def _samples(client: httpx2.Client, names: tuple[str, ...]) -> dict[str, float]:
    """The sum of all samples of each of these names."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(_metric_lines(client, *names)):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def _metric_lines(client: httpx2.Client, *names: str) -> str:
    """Return the lines of these metrics of a server; all of them would take long to parse."""
    lines = client.get("/metrics").text.splitlines(keepends=True)
    return "".join(line for line in lines if any(name in line for name in names))
