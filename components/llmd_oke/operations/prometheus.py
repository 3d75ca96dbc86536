"""What a Prometheus answers: series of a PromQL query, by its HTTP API.

Where a stack's Prometheus is says the plan (`Plan.monitoring`): an address of the stack file, or the Service of the one
that the stack installs, which is inside the cluster. Whoever is outside gives the address at the end of a tunnel.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import httpx2
from llmd_pods.errors import KitError
from pydantic import BaseModel, Field, ValidationError

LIMIT_S = 10.0
"""For one query, from the request to the last byte of the answer."""

MOST_BYTES = 32 * 2**20

_CONNECT_S = 3.0


@dataclass(frozen=True)
class Series:
    """One series of an answer: its labels, and its points as (Unix time in seconds, value), one for an instant."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """The newest value."""
        return self.points[-1][1]


class _Row(BaseModel):
    metric: dict[str, str] = Field(default_factory=dict[str, str])
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = Field(default_factory=list[tuple[float, str]])


class _Data(BaseModel):
    result_type: Literal["vector", "matrix", "scalar", "string"] = Field(alias="resultType")
    result: list[_Row] | tuple[float, str]


class _Answer(BaseModel):
    status: Literal["success", "error"]
    data: _Data | None = None
    error: str = ""


def query(url: str, promql: str, *, http: httpx2.Client | None = None, limit_s: float = LIMIT_S) -> list[Series]:
    """The series of an instant query, as they are now; none where nothing matches.

    Args:
        url: the Prometheus, `http://host:9090`, with the path that it lies under, if any.
        promql: the query.
        http: a client with certificates or headers of its own; proxies of the environment are not used if left out.
        limit_s: for the whole answer, in seconds.

    Raises:
        KitError: it can't be reached, doesn't answer in time, refuses the query, or is no Prometheus.
    """
    return _ask(url, "query", {"query": promql}, http, limit_s)


def query_range(
    url: str,
    promql: str,
    *,
    start_s: float,
    end_s: float,
    step_s: float,
    http: httpx2.Client | None = None,
    limit_s: float = LIMIT_S,
) -> list[Series]:
    """The series of a query over a time, in Unix seconds, with a point every `step_s`.

    Raises:
        KitError: see `query`.
    """
    parameters = {"query": promql, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
    return _ask(url, "query_range", parameters, http, limit_s)


def _ask(
    url: str, kind: str, parameters: Mapping[str, str], http: httpx2.Client | None, limit_s: float
) -> list[Series]:
    client = http or httpx2.Client(trust_env=False)
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
        answer = _Answer.model_validate_json(content)
    except ValidationError as error:
        raise KitError(f"What answers at {url} is no Prometheus.", "Give the address of its HTTP API.") from error
    if answer.status == "error" or answer.data is None:
        raise KitError(f"Prometheus at {url} refuses {parameters['query']!r}: {answer.error}.")
    return _series(answer.data)


def _content(client: httpx2.Client, address: str, parameters: Mapping[str, str], limit_s: float) -> bytes:
    """The answer, that of an error too, which Prometheus explains in the same form."""
    content, deadline_s = bytearray(), time.monotonic() + limit_s
    timeout = httpx2.Timeout(limit_s, connect=min(_CONNECT_S, limit_s))
    with client.stream("POST", address, data=dict(parameters), timeout=timeout) as response:
        for part in response.iter_bytes():
            content += part
            if len(content) > MOST_BYTES:
                raise KitError(f"The answer of {address} has more than {MOST_BYTES // 2**20} MiB.", "Ask for less.")
            if time.monotonic() > deadline_s:
                raise KitError(f"{address} did not answer within {limit_s:g} s.", "Ask for less, or give it longer.")
    return bytes(content)


def _series(data: _Data) -> list[Series]:
    if isinstance(data.result, tuple):
        at_s, text = data.result
        return [Series({}, ((at_s, float(text)),))] if data.result_type == "scalar" else []
    return [
        Series(row.metric, tuple((at_s, float(text)) for at_s, text in ([row.value] if row.value else row.values)))
        for row in data.result
    ]
