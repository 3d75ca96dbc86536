"""Canaries: a few known prompts that each server of a model is asked all the time, held to the first answers.

A server that computes wrong answers with status 200, a path of KV cache that has become slow, and a server that doesn't
do what its role says show in no counter of vLLM.
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
"""How an answer is beside the first one to its prompt: the same, another one, none; or a prefill server that keeps no
KV cache for a decode server."""

_PREFILL: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}
"""What llm-d's routing sidecar sends a prefill server (llm-d-router v0.10.0, pkg/sidecar/proxy/connector_nixlv2.go)."""

_TEMPLATE_LABEL = "pod-template-hash"
"""Label of the Deployment controller: pods with the same value were made alike."""


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
        self._servers: frozenset[tuple[str, Role, str]] = frozenset()

    def keep(self, servers: Iterable[tuple[str, Role, str]]) -> None:
        """Keep the series of these servers, by unit, role and name, and drop those of servers that are gone."""
        now = frozenset(servers)
        for gone in self._servers - now:
            self.seconds.remove(*gone)
            for outcome in get_args(Outcome):
                self.answers.remove(*gone, outcome)
        self._servers = now


class Canaries:
    """Canaries of one model.

    Args:
        request: whom to ask what.
        pods: finds the pods with some labels; raises KitError where it can't.
        client: asks servers.
        metrics: where outcomes are counted.
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
        """Ask each server that has started once. Prefill servers hand their prompt to decode servers of their version
        in turn, so that each of both does its part.

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
                self._ask_alone(unit.name, pod, prompt)
            for one, other in self._pairs(servers.get("prefill", ()), servers.get("decode", ()), number):
                self._ask_pair(unit.name, one, other, prompt)
        self._metrics.keep(found)
        self._metrics.round_ended.set(time.time())

    def _pairs(
        self, prefill: Sequence[PodAddress], decode: Sequence[PodAddress], number: int
    ) -> Iterator[tuple[PodAddress, PodAddress]]:
        """Pair servers of each version, all of both roles, in other pairs in the next round."""
        for version in sorted({self._version(pod) for pod in decode}):
            ours, partners = ([pod for pod in pods if self._version(pod) == version] for pods in (prefill, decode))
            if ours:
                turned = islice(cycle(partners), number % len(partners), None)
                yield from islice(zip(cycle(ours), turned, strict=False), max(len(ours), len(partners)))

    def _version(self, pod: PodAddress) -> str:
        return pod.labels.get(self._request.version_label, "")

    def _ask_alone(self, unit: str, pod: PodAddress, prompt: str) -> None:
        answer = self._ask(unit, "aggregated", pod, {"prompt": prompt})
        outcome = "failed" if answer is None else self._judge((unit, prompt, _template(pod)), answer)
        self._count(unit, {"aggregated": pod}, outcome)

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
        """Return the answer of a server; None where it gives none."""
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
    """Return what servers made alike have in common: those of another template may well answer otherwise."""
    return pod.labels.get(_TEMPLATE_LABEL, "")
