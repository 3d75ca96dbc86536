"""Client of Prometheus' HTTP API: PromQL queries and firing alerts.

`Plan.monitoring` has the URL of a stack's Prometheus: that of the stack file, or that of the Service of the Prometheus
that the stack installs, which is reachable only inside the cluster. Commands outside need the URL of a tunnel.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeVar
from urllib.parse import urlsplit

import httpx2
from llmd_base.errors import KitError
from pydantic import BaseModel, Field, ValidationError

from llmd_oke.catalogue.serving import scaling
from llmd_oke.planning import Plan

LIMIT_S = 10.0
"""Default limit of one query in seconds, from the request to the last byte of the answer."""

MAX_BYTES = 32 * 2**20

_CONNECT_S = 3.0

Data = TypeVar("Data", bound=BaseModel)


@dataclass(frozen=True)
class PrometheusSeries:
    """Time series of an answer: labels, and points as (Unix time in seconds, value); an instant query has one point."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """Value of the series' newest point."""
        return self.points[-1][1]


@dataclass(frozen=True)
class FiringAlert:
    """A firing alert: labels and annotations of its rule, and the time since which it is active."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    since: datetime | None


class _Row(BaseModel):
    metric: dict[str, str] = Field(default_factory=dict[str, str])
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = Field(default_factory=list[tuple[float, str]])


class _Data(BaseModel):
    result_type: Literal["vector", "matrix", "scalar", "string"] = Field(alias="resultType")
    result: list[_Row] | tuple[float, str]


class _Alert(BaseModel):
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    annotations: dict[str, str] = Field(default_factory=dict[str, str])
    state: str
    active_at: datetime | None = Field(default=None, alias="activeAt")


class _Alerts(BaseModel):
    alerts: list[_Alert]


class _Refusal(BaseModel):
    """Error answer of the API server, for example for a Service that doesn't exist."""

    message: str


class _Answer(BaseModel, Generic[Data]):
    status: Literal["success", "error"]
    data: Data | None = None
    error: str = ""


def query(
    url: str, promql: str, *, http: httpx2.Client | None = None, limit_s: float = LIMIT_S
) -> list[PrometheusSeries]:
    """Run an instant query at the present time; return the matching series.

    Args:
        url: base URL of Prometheus, such as `http://host:9090`, with its path prefix, if any.
        promql: the query.
        http: HTTP client with certificates or headers; if left out, a client with the proxies and certificate
            authorities of the environment.
        limit_s: limit for the whole answer in seconds.

    Raises:
        KitError: the server can't be reached, doesn't answer within `limit_s`, refuses the query, or isn't Prometheus.
    """
    return _series(_ask(url, "query", _Answer[_Data], {"query": promql}, http, limit_s))


def query_range(
    url: str,
    promql: str,
    *,
    start_s: float,
    end_s: float,
    step_s: float,
    http: httpx2.Client | None = None,
    limit_s: float = LIMIT_S,
) -> list[PrometheusSeries]:
    """Run a range query from `start_s` to `end_s` (Unix time in seconds); return the matching series, with a point
    every `step_s` seconds.

    Raises:
        KitError: as for `query`.
    """
    parameters = {"query": promql, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
    return _series(_ask(url, "query_range", _Answer[_Data], parameters, http, limit_s))


def alerts(url: str, *, http: httpx2.Client | None = None, limit_s: float = LIMIT_S) -> list[FiringAlert]:
    """Return the alerts that fire in a Prometheus.

    Raises:
        KitError: as for `query`.
    """
    rows = _ask(url, "alerts", _Answer[_Alerts], {}, http, limit_s).alerts
    return [FiringAlert(row.labels, row.annotations, row.active_at) for row in rows if row.state == "firing"]


def _ask(
    url: str,
    kind: str,
    form: type[_Answer[Data]],
    parameters: Mapping[str, str],
    http: httpx2.Client | None,
    limit_s: float,
) -> Data:
    client = http or httpx2.Client()
    try:
        content = _content(client, f"{url.rstrip('/')}/api/v1/{kind}", parameters, limit_s)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        remedy = "Does it run, and does this address lead to it from here? One inside a cluster needs a tunnel."
        raise KitError(
            f"Prometheus at {url} can't be reached: {str(error) or type(error).__name__}.", remedy
        ) from error
    finally:
        if http is None:
            client.close()
    try:
        answer = form.model_validate_json(content)
    except ValidationError as error:
        what = f"What answers at {url} is no Prometheus{_refusal(content)}."
        raise KitError(what, "Give the address of its HTTP API.") from error
    if answer.status == "error" or answer.data is None:
        raise KitError(f"Prometheus at {url} refuses {parameters.get('query', kind)!r}: {answer.error}.")
    return answer.data


def _refusal(content: bytes) -> str:
    try:
        return f": {_Refusal.model_validate_json(content).message}"
    except ValidationError:
        return ""


def _content(client: httpx2.Client, address: str, parameters: Mapping[str, str], limit_s: float) -> bytes:
    """Request a URL by GET; return the body, also that of an error status, which Prometheus explains in JSON.

    A thread of its own reads the body, as the client's timeouts apply to single reads, which a slow server never
    exceeds. GET, because the API server's proxy then requires no permission but `get`.

    Raises:
        KitError: the body isn't complete within `limit_s` seconds, or is longer than `MAX_BYTES`.
        httpx2.HTTPError: the server can't be reached.
    """
    answer, deadline_s = Future[bytes](), time.monotonic() + limit_s

    def read() -> None:
        try:
            answer.set_result(_read(client, address, parameters, deadline_s))
        except Exception as error:  # raised by `answer.result`
            answer.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        return answer.result(limit_s)
    except httpx2.ConnectTimeout:
        raise
    except (TimeoutError, httpx2.TimeoutException) as error:
        raise KitError(f"{address} did not answer within {limit_s:g} s.", "Ask for less, or give it longer.") from error


def _read(client: httpx2.Client, address: str, parameters: Mapping[str, str], deadline_s: float) -> bytes:
    left_s = deadline_s - time.monotonic()
    content, timeout = bytearray(), httpx2.Timeout(left_s, connect=min(_CONNECT_S, left_s))
    with client.stream("GET", address, params=dict(parameters), timeout=timeout) as response:
        for part in response.iter_bytes():
            content += part
            if len(content) > MAX_BYTES:
                raise KitError(f"The answer of {address} has more than {MAX_BYTES // 2**20} MiB.", "Ask for less.")
            if time.monotonic() > deadline_s:
                raise TimeoutError
    return bytes(content)


def _series(data: _Data) -> list[PrometheusSeries]:
    if isinstance(data.result, tuple):
        at_s, text = data.result
        return [PrometheusSeries({}, ((at_s, float(text)),))] if data.result_type == "scalar" else []
    return [
        PrometheusSeries(
            row.metric, tuple((at_s, float(text)) for at_s, text in ([row.value] if row.value else row.values))
        )
        for row in data.result
    ]


def prometheus_url(plan: Plan) -> str | None:
    """Return the URL of a stack's Prometheus for pods of the cluster: that of `monitoring`, or else that of the first
    scaled model; None if the stack has neither monitoring nor scaling.
    """
    if plan.monitoring is not None:
        return plan.monitoring.url
    scaled = [model.scaling for model in plan.models if model.scaling]
    return (scaled[0].prometheus or scaling().prometheus) if scaled else None


def service_path(url: str) -> str | None:
    """Return the path of the API server's proxy for the URL of a Service (`http://name.namespace.svc…`); None for other
    URLs.
    """
    place = urlsplit(url)
    service = _SERVICE.fullmatch(place.hostname or "")
    if service is None:
        return None
    name = f"{place.scheme}:{service['name']}:{place.port or _PORT}"
    return f"/api/v1/namespaces/{service['namespace']}/services/{name}/proxy{place.path}".rstrip("/")


_SERVICE = re.compile(r"(?P<name>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc(\..*)?")
_PORT = 9090
