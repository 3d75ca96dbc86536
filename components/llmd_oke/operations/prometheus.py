"""Client of a Prometheus's HTTP API: series of a PromQL query.

Where a stack's Prometheus is says the plan (`Plan.monitoring`): an address of the stack file, or the Service of the one
that the stack installs, which is inside the cluster. Whoever is outside gives the address at the end of a tunnel.

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
"""For one query, from the request to the last byte of the answer."""

MAX_BYTES = 32 * 2**20

_CONNECT_S = 3.0

Data = TypeVar("Data", bound=BaseModel)


@dataclass(frozen=True)
class PrometheusSeries:
    """One series of an answer: its labels, and its points as (Unix time in seconds, value), one for an instant."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """The newest value."""
        return self.points[-1][1]


@dataclass(frozen=True)
class FiringAlert:
    """An alert that fires, as its rule labels and explains it."""

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
    """Answer of the API server for a Service that isn't there."""

    message: str


class _Answer(BaseModel, Generic[Data]):
    status: Literal["success", "error"]
    data: Data | None = None
    error: str = ""


def query(
    url: str, promql: str, *, http: httpx2.Client | None = None, limit_s: float = LIMIT_S
) -> list[PrometheusSeries]:
    """The series of an instant query, as they are now; none where nothing matches.

    Args:
        url: the Prometheus, `http://host:9090`, with the path that it lies under, if any.
        promql: the query.
        http: a client with certificates or headers of its own; if left out, one that goes by the environment's
            proxies and authorities, as `kubectl` does.
        limit_s: for the whole answer, in seconds.

    Raises:
        KitError: it can't be reached, doesn't answer in time, refuses the query, or is no Prometheus.
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
    """The series of a query over a time, in Unix seconds, with a point every `step_s`.

    Raises:
        KitError: see `query`.
    """
    parameters = {"query": promql, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
    return _series(_ask(url, "query_range", _Answer[_Data], parameters, http, limit_s))


def alerts(url: str, *, http: httpx2.Client | None = None, limit_s: float = LIMIT_S) -> list[FiringAlert]:
    """The alerts that fire.

    Raises:
        KitError: see `query`.
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
    """The answer, that of an error too, which Prometheus explains in the same form. It is read by a thread of its own:
    a client's limits are for one read each, and a server that trickles ends none of them.

    GET, since the way through the API server then needs no right but to read.
    """
    answer, deadline_s = Future[bytes](), time.monotonic() + limit_s

    def read() -> None:
        try:
            answer.set_result(_read(client, address, parameters, deadline_s))
        except Exception as error:  # who waits raises it
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
    """The address of the Prometheus that a stack file names, as pods reach it; None where it names none."""
    if plan.monitoring is not None:
        return plan.monitoring.url
    scaled = [model.scaling for model in plan.models if model.scaling]
    return (scaled[0].prometheus or scaling().prometheus) if scaled else None


def service_path(url: str) -> str | None:
    """The path of the API server's proxy that leads to the Service which an address names; None for another address."""
    place = urlsplit(url)
    service = _SERVICE.fullmatch(place.hostname or "")
    if service is None:
        return None
    name = f"{place.scheme}:{service['name']}:{place.port or _PORT}"
    return f"/api/v1/namespaces/{service['namespace']}/services/{name}/proxy{place.path}".rstrip("/")


_SERVICE = re.compile(r"(?P<name>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc(\..*)?")
_PORT = 9090
