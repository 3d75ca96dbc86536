"""Canaries: known prompts that are sent to each server of a model periodically, whose answers must equal the first
ones.

vLLM's counters show neither wrong answers with status 200, nor a slow transfer of KV cache, nor a server that doesn't
fulfil its role.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Literal, get_args
from uuid import uuid4

import httpx
from llmd_base.addresses import PodAddress
from prometheus_client import CollectorRegistry, Counter, Gauge

from llmd_bench.canary_request import CanaryRequest
from llmd_bench.deployment import Role

Outcome = Literal["same", "different", "failed", "nothing handed over"]
"""Outcome of a canary request: an answer equal to the first one to the prompt, a different answer, no answer, or a
prefill server that returned no parameters for the transfer of KV cache.
"""

_PREFILL: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}
"""`kv_transfer_params` that llm-d's routing sidecar sends to a prefill server (llm-d-router v0.10.0,
pkg/sidecar/proxy/connector_nixlv2.go).
"""

_TEMPLATE_LABEL = "pod-template-hash"
"""Label that the Deployment controller sets: pods with the same value have the same pod template."""


class CanaryMetrics:
    """Prometheus metrics of the canaries: number of answers by outcome, duration of the last answer, time of the last
    round.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        server = ("unit", "role", "server")
        self.answers = Counter(
            "llmd_oke_canary_answers",
            "Answers to known prompts, by how they are beside the first ones.",
            (*server, "outcome"),
            registry=registry,
        )
        self.seconds = Gauge(
            "llmd_oke_canary_answer_seconds",
            "Seconds of the last answer; of a decode server from the hand-over of the prompt's KV cache on.",
            server,
            registry=registry,
        )
        self.round_ended = Gauge(
            "llmd_oke_canary_round_timestamp_seconds", "Time of the last round of all servers.", registry=registry
        )
        self._servers: frozenset[tuple[str, Role, str]] = frozenset()

    def keep(self, servers: Iterable[tuple[str, Role, str]]) -> None:
        """Remove the metric series of all servers except these, each given as unit (the servers behind one router),
        role and name.
        """
        now = frozenset(servers)
        for gone in self._servers - now:
            self.seconds.remove(*gone)
            for outcome in get_args(Outcome):
                self.answers.remove(*gone, outcome)
        self._servers = now


class Canaries:
    """Sender of the canary requests of one model.

    Args:
        request: servers, prompts and limits.
        pods: function that returns the pods with the given labels; raises KitError if they can't be listed.
        client: HTTP client for the servers.
        metrics: metrics that the outcomes are written to.
    """

    def __init__(
        self,
        request: CanaryRequest,
        pods: Callable[[Mapping[str, str]], Sequence[PodAddress]],
        client: httpx.Client,
        metrics: CanaryMetrics,
    ) -> None:
        self._request = request
        self._pods = pods
        self._client = client
        self._metrics = metrics
        self._first: dict[tuple[str, ...], str] = {}

    def round(self, number: int) -> None:
        """Send the prompt of round `number` to each server that has started. Prefill and decode servers of the same
        version are paired, in other pairs each round, so that each pair transfers KV cache.

        Raises:
            KitError: pods can't be listed.
        """
        prompt = self._request.prompts[number % len(self._request.prompts)]
        found: list[tuple[str, Role, str]] = []
        for unit in self._request.units:
            servers: dict[Role, list[PodAddress]] = {
                role: [pod for pod in self._pods(selector) if pod.started] for role, selector in unit.selectors.items()
            }
            found.extend((unit.name, role, pod.name) for role, pods in servers.items() for pod in pods)
            for pod in servers.get("aggregated", ()):
                answer = self._ask(unit.name, "aggregated", pod, {"prompt": prompt})
                outcome = "failed" if answer is None else self._judge((unit.name, prompt, _template(pod)), answer)
                self._count(unit.name, {"aggregated": pod}, outcome)
            for one, other in self._pairs(servers.get("prefill", ()), servers.get("decode", ()), number):
                self._ask_pair(unit.name, one, other, prompt)
        self._metrics.keep(found)
        self._metrics.round_ended.set(time.time())

    def _pairs(
        self, prefill: Sequence[PodAddress], decode: Sequence[PodAddress], number: int
    ) -> Iterator[tuple[PodAddress, PodAddress]]:
        """Yield pairs of prefill and decode servers of the same version, in which each server occurs; the pairs change
        with `number`.
        """
        for version in sorted({self._version(pod) for pod in decode}):
            ours, partners = ([pod for pod in pods if self._version(pod) == version] for pods in (prefill, decode))
            if ours:
                turned = islice(cycle(partners), number % len(partners), None)
                yield from islice(zip(cycle(ours), turned, strict=False), max(len(ours), len(partners)))

    def _version(self, pod: PodAddress) -> str:
        return pod.labels.get(self._request.version_label, "")

    def _ask_pair(self, unit: str, prefill: PodAddress, decode: PodAddress, prompt: str) -> None:
        salt = uuid4().hex  # no cached prefix: each prompt is computed and handed over anew
        asked = {"prompt": prompt, "cache_salt": salt}
        first = self._ask(unit, "prefill", prefill, {**asked, "max_tokens": 1, "kv_transfer_params": dict(_PREFILL)})
        if first is None or not first.get("kv_transfer_params"):
            self._count(unit, {"prefill": prefill}, "failed" if first is None else "nothing handed over")
            return
        answer = self._ask(unit, "decode", decode, {**asked, "kv_transfer_params": first["kv_transfer_params"]})
        if answer is None:
            self._count(unit, {"decode": decode}, "failed")
            return
        of_pair = (unit, prompt, _template(prefill), _template(decode))
        self._count(unit, {"prefill": prefill, "decode": decode}, self._judge(of_pair, answer))

    def _ask(self, unit: str, role: Role, pod: PodAddress, body: Mapping[str, object]) -> dict[str, Any] | None:
        """Return the JSON answer of a server; None if the request fails or the answer is no JSON."""
        own = {"model": self._request.model, "temperature": 0, "max_tokens": self._request.max_tokens, **body}
        url, begun_s = f"http://{pod.address}:{self._request.ports[role]}/v1/completions", time.monotonic()
        try:
            response = self._client.post(url, json=own, timeout=self._request.timeout_s).raise_for_status()
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            print(f"{role} server {pod.name} of {unit}: {error}", file=sys.stderr, flush=True)
            return None
        self._metrics.seconds.labels(unit, role, pod.name).set(time.monotonic() - begun_s)
        return answer

    def _judge(self, asked: tuple[str, ...], answer: Mapping[str, Any]) -> Outcome:
        text = str(answer["choices"][0].get("text", "")) if answer.get("choices") else ""
        return "same" if self._first.setdefault(asked, text) == text else "different"

    def _count(self, unit: str, servers: Mapping[Role, PodAddress], outcome: Outcome) -> None:
        for role, pod in servers.items():
            self._metrics.answers.labels(unit, role, pod.name, outcome).inc()


def _template(pod: PodAddress) -> str:
    """Return the hash of the pod's template, empty if the pod has none: servers of different templates may answer
    differently.
    """
    return pod.labels.get(_TEMPLATE_LABEL, "")
