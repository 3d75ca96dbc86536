"""Canaries: a few known prompts that each server of a model is asked all the time, held to the first answers.

A server that computes wrong answers with status 200, a path of KV cache that has become slow, and a server that doesn't
do what its role says show in no counter of vLLM.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Literal
from uuid import uuid4

import httpx
from llmd_base.addresses import PodAddress
from prometheus_client import CollectorRegistry, Counter, Gauge

from llmd_bench.canary_request import CanaryRequest
from llmd_bench.deployment import Role

Outcome = Literal["same", "different", "failed", "nothing handed over"]
"""How an answer is beside the first one to its prompt: the same, another one, none; or a prefill server that keeps no
KV cache for a decode server."""

_PREFILL: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}
"""What llm-d's routing sidecar sends a prefill server (llm-d-router v0.10.0, pkg/sidecar/proxy/connector_nixlv2.go)."""


class CanaryMetrics:
    """Metrics of canaries: answers by outcome, seconds of the last one, and the time of the last round."""

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


class Canaries:
    """Canaries of one model.

    Args:
        request: whom to ask what.
        pods: finds the pods with some labels; raises KitError where it can't.
        client: asks servers.
        metrics: where outcomes are counted.
        clock: time in seconds; for tests.
    """

    def __init__(
        self,
        request: CanaryRequest,
        pods: Callable[[Mapping[str, str]], Sequence[PodAddress]],
        client: httpx.Client,
        metrics: CanaryMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._request = request
        self._pods = pods
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._first: dict[tuple[str, str], str] = {}

    def round(self, number: int) -> None:
        """Ask each server once: prefill servers hand their prompt to decode servers in turn, so that each of both does
        its part.

        Raises:
            KitError: pods can't be listed.
        """
        prompt = self._request.prompts[number % len(self._request.prompts)]
        for unit in self._request.units:
            servers = {role: self._pods(selector) for role, selector in unit.selectors.items()}
            for pod in servers.get("aggregated", ()):
                self._ask_alone(unit.name, pod, prompt)
            prefill, decode = servers.get("prefill", ()), servers.get("decode", ())
            if prefill and decode:
                most = max(len(prefill), len(decode))
                partners = islice(cycle(decode), number % len(decode), None)
                for one, other in zip(islice(cycle(prefill), most), partners, strict=False):
                    self._ask_pair(unit.name, one, other, prompt)
        self._metrics.round_ended.set(self._clock())

    def _ask_alone(self, unit: str, pod: PodAddress, prompt: str) -> None:
        answer = self._ask(unit, "aggregated", pod, {"prompt": prompt})
        self._count(unit, {"aggregated": pod}, "failed" if answer is None else self._judge(unit, prompt, answer))

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
        self._count(unit, {"prefill": prefill, "decode": decode}, self._judge(unit, prompt, answer))

    def _ask(self, unit: str, role: Role, pod: PodAddress, body: Mapping[str, object]) -> dict[str, Any] | None:
        """Return the answer of a server; None where it gives none."""
        own = {"model": self._request.model, "temperature": 0, "max_tokens": self._request.max_tokens, **body}
        url, begun_s = f"http://{pod.address}:{self._request.ports[role]}/v1/completions", self._clock()
        try:
            response = self._client.post(url, json=own, timeout=self._request.timeout_s).raise_for_status()
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError):
            return None
        self._metrics.seconds.labels(unit, role, pod.name).set(self._clock() - begun_s)
        return answer

    def _judge(self, unit: str, prompt: str, answer: Mapping[str, Any]) -> Outcome:
        text = str(answer["choices"][0].get("text", "")) if answer.get("choices") else ""
        return "same" if self._first.setdefault((unit, prompt), text) == text else "different"

    def _count(self, unit: str, servers: Mapping[Role, PodAddress], outcome: Outcome) -> None:
        for role, pod in servers.items():
            self._metrics.answers.labels(unit, role, pod.name, outcome).inc()
