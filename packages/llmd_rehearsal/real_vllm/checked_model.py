"""Access to one model of a rehearsal with vLLM itself, for the checks: its Service, servers, answers and metrics."""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import httpx2
from lightkube import Client
from lightkube.resources.core_v1 import Pod
from llmd_base.progress import Progress
from llmd_bench.queries import parse
from llmd_tuner.latency import window_blocks

from llmd_rehearsal.namespaces import processor_seconds_of

TOKENS = 16
"""Number of output tokens that the checks request for an answer."""

TOLERANCE = 0.1
"""Largest permitted difference in log probability of a first token if sums are rounded differently: in BF16, or with
different tensor parallel sizes.
"""

HANDED_OVER = "vllm:nixl_bytes_transferred_sum"
RECEIVED = "vllm:external_prefix_cache_hits_total"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
RUNNING, CACHE = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"

REQUEST_LIMIT_S, SETTLE_LIMIT_S, LEASE_LIMIT_S, READY_LIMIT_S = 120.0, 20.0, 60.0, 240.0
"""Time limits in seconds of the checks of vLLM's servers: of a request, of counters reaching their final values, of a
KV cache lease's end, and of a server's start.
"""

_PAUSE_S = 0.5
_WORDS = ("hello", "world", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "one", "two", "three", "four")


class CheckError(Exception):
    """Error for a failed check of servers that run vLLM itself; the message has the evidence."""


@dataclass(frozen=True)
class ServerGroup:
    """Servers of one role of a model: labels of their pods, and vLLM's port."""

    role: str
    selector: Mapping[str, str]
    port: int


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that the checks of its vLLM servers need: Services, servers, and expectations of its tiny
    model.

    `full_block_bytes` and `windowed_block_bytes` are the bytes of one KV cache block over all layers with full
    attention, and over all layers with a sliding window. `exact` is true if prefill and decode servers round equally:
    in FP32 and with the same tensor parallel size. `calls_by_schema`: vLLM enforces the schema of a named tool, which
    it doesn't in the Harmony format. `metrics` are names without suffixes such as `_total`.
    """

    name: str
    namespace: str
    service: str
    routers: tuple[str, ...]
    policies_enforced: bool
    repository: str
    apis: tuple[str, ...]
    features: tuple[str, ...]
    calls_by_schema: bool
    groups: tuple[ServerGroup, ...]
    block_size: int
    full_block_bytes: int
    windowed_block_bytes: int
    window_tokens: int | None
    exact: bool
    metrics: tuple[str, ...]

    @property
    def disaggregated(self) -> bool:
        """Tell whether the model has prefill and decode servers, so that KV caches are handed over."""
        return {group.role for group in self.groups} >= {"prefill", "decode"}

    def handed_over_bytes(self, tokens: int) -> int:
        """Return the bytes of a prompt's KV cache that a decode server reads: whole blocks, and of layers with a
        sliding window the blocks that the next token attends to.
        """
        whole = -(-tokens // self.block_size) * self.full_block_bytes
        if self.window_tokens is None:
            return whole
        return whole + window_blocks(tokens, self.window_tokens, self.block_size) * self.windowed_block_bytes

    def accepts(self, answer: "Answer", right: "Answer") -> bool:
        """Tell whether an answer counts as equal to the right answer, that of a single server: first tokens are within
        `TOLERANCE` in log probability, and tokens are equal where `exact`.
        """
        return right.difference(answer) <= TOLERANCE and (not self.exact or answer.tokens == right.tokens)


@dataclass(frozen=True)
class Answer:
    """Answer of a model to a check's prompt: its tokens, the log probabilities of the likeliest first tokens, and the
    number of prompt tokens.
    """

    tokens: tuple[str, ...]
    first: Mapping[str, float]
    prompt_tokens: int
    transfer: Mapping[str, Any] | None = None

    def apart(self, other: "Answer") -> str:
        """Return, for messages, the difference in log probability between the first tokens of this answer and
        another.
        """
        difference = self.difference(other)
        return f"{difference:.2g} apart" if isfinite(difference) else "not among the likeliest"

    def difference(self, other: "Answer") -> float:
        """Return the absolute difference between both answers' log probabilities of this answer's likeliest first
        token; infinite if that isn't among the other answer's likeliest tokens.
        """
        likeliest = max(self.first, key=lambda token: self.first[token])
        return abs(self.first[likeliest] - other.first.get(likeliest, float("inf")))


@dataclass(frozen=True)
class VllmPod:
    """Pod with a vLLM server: HTTP client of vLLM, readiness, and number of container restarts."""

    name: str
    client: httpx2.Client
    ready: bool
    restarts: int


@dataclass
class Stack:
    """HTTP and Kubernetes clients with which checks reach a model's Service, its servers and the cluster."""

    facts: ModelFacts
    cluster: Client
    progress: Progress
    exits: ExitStack
    clients: dict[str, httpx2.Client] = field(default_factory=dict[str, httpx2.Client])

    @property
    def service(self) -> httpx2.Client:
        """Client of the model's Service."""
        return self._service(self.facts.service)

    @property
    def entrances(self) -> list[httpx2.Client]:
        """HTTP clients of the model's Service and of the Services of its routers."""
        return [self.service, *map(self._service, self.facts.routers)]

    def _service(self, name: str) -> httpx2.Client:
        return self.client(f"http://{name}.{self.facts.namespace}.svc.cluster.local")

    def client(self, url: str) -> httpx2.Client:
        """Return an HTTP client of a base URL; repeated calls return the same client."""
        if url not in self.clients:
            opened = httpx2.Client(base_url=url, timeout=REQUEST_LIMIT_S, trust_env=False)
            self.clients[url] = self.exits.enter_context(opened)
        return self.clients[url]

    def pods(self, role: str) -> list[VllmPod]:
        """Return the pods of the model's servers of a role that have an IP address and aren't being deleted."""
        group = next(group for group in self.facts.groups if group.role == role)
        found = self.cluster.list(Pod, namespace=self.facts.namespace, labels=dict(group.selector))
        return [
            VllmPod(
                pod.metadata.name or "",
                self.client(f"http://{pod.status.podIP}:{group.port}"),
                any(item.type == "Ready" and item.status == "True" for item in pod.status.conditions or ()),
                sum(container.restartCount for container in pod.status.containerStatuses or ()),
            )
            for pod in found
            if pod.metadata and not pod.metadata.deletionTimestamp and pod.status and pod.status.podIP
        ]

    def servers(self, *roles: str) -> list[httpx2.Client]:
        """Return clients of vLLM in the pods of these roles (by default all roles), bypassing sidecars and routers."""
        return [pod.client for role in roles or self.roles for pod in self.pods(role)]

    def end(self, pod: VllmPod) -> None:
        """Delete a server's pod, which its Deployment replaces."""
        self.cluster.delete(Pod, pod.name, namespace=self.facts.namespace)

    @property
    def roles(self) -> list[str]:
        """Roles of the model's servers, such as `prefill` and `decode`."""
        return [group.role for group in self.facts.groups]

    def complete(self, client: httpx2.Client, prompt: str | list[int], **more: Any) -> Answer:
        """Return the model's answer to a prompt, with greedy decoding, from the server behind `client`.

        Raises:
            CheckError: the request failed.
        """
        body = {
            "model": self.facts.repository,
            "prompt": prompt,
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 5,
            **more,
        }
        document = posted(client, "/v1/completions", body).json()
        (choice,) = document["choices"]
        found = choice["logprobs"]
        return Answer(
            tuple(found["tokens"]),
            found["top_logprobs"][0],
            document["usage"]["prompt_tokens"],
            document.get("kv_transfer_params"),
        )

    def alone(self, prompt: str | list[int]) -> Answer:
        """Return the answer of a single decode server that computes the whole prompt itself; a unique cache salt
        prevents that it finds the prompt in a cache.
        """
        client = self.servers("decode" if self.facts.disaggregated else "aggregated")[0]
        return self.complete(client, prompt, cache_salt=f"{random.random()}")  # noqa: S311 - no secret

    def prefilled(self, prompt: list[int], server: httpx2.Client | None = None) -> Mapping[str, Any]:
        """Let a prefill server (by default the first) compute a prompt, and return the `kv_transfer_params` by which a
        decode server finds the KV cache.

        Raises:
            CheckError: the prefill server's answer has no `kv_transfer_params`.
        """
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = self.complete(server or self.servers("prefill")[0], prompt, max_tokens=1, kv_transfer_params=asked)
        if answer.transfer is None:
            raise CheckError("a prefill server answers without kv_transfer_params")
        return answer.transfer

    def metric(self, name: str, *roles: str) -> float:
        """Return the sum of a metric over all servers of these roles (by default all roles) of the model."""
        return sum(samples_of(client).get(name, 0.0) for client in self.servers(*roles))

    def grown(self, name: str, role: str, before: float, expected: float) -> float:
        """Return a counter's growth since its value `before`, once it is at least `expected` or the time limit passed:
        vLLM counts transfers in a later engine step.
        """
        wait(lambda: self.metric(name, role) - before >= expected, SETTLE_LIMIT_S)
        return self.metric(name, role) - before

    def at_rest(self, limit_s: float = LEASE_LIMIT_S) -> bool:
        """Wait until no server runs a request or keeps KV cache blocks; return whether that happened within `limit_s`
        seconds.
        """
        return wait(lambda: self.metric(RUNNING) == 0 and self.metric(CACHE) == 0, limit_s)

    def ready(self, role: str, count: int) -> None:
        """Wait until exactly `count` pods of the model's servers of a role exist and are ready.

        Raises:
            CheckError: the pods aren't ready within the time limit.
        """

        def are_ready() -> bool:
            pods = self.pods(role)
            return len(pods) == count and all(pod.ready for pod in pods)

        if not wait(are_ready, READY_LIMIT_S):
            raise CheckError(f"not all {count} {role} servers were ready again within {READY_LIMIT_S:g} s")

    def restarts(self) -> int:
        """Return the number of container restarts of all servers of the model."""
        return sum(pod.restarts for role in self.roles for pod in self.pods(role))


def posted(client: httpx2.Client, path: str, body: Mapping[str, Any]) -> httpx2.Response:
    """Return a server's response to a POST request.

    Raises:
        CheckError: the server doesn't answer, or answers with an error.
    """
    try:
        response = client.post(path, json=body)
    except httpx2.HTTPError as error:
        raise CheckError(f"{client.base_url}{path} doesn't answer: {error!r}") from error
    if response.is_error:
        raise CheckError(f"{path} answers {response.status_code}: {response.text[:200]}")
    return response


def samples_of(client: httpx2.Client) -> dict[str, float]:
    """Return the values of all metrics of a vLLM server by name, summed over labels; empty if the server doesn't
    answer.
    """
    try:
        text = client.get("/metrics").text
    except httpx2.HTTPError:
        return {}
    return {name: sum(sample.value for sample in samples) for name, samples in parse(text).items()}


def processor_seconds(root: Path = Path("/proc")) -> dict[int, float]:
    """Return the processor time in seconds that each running vLLM server has used in all its processes, by the inode of
    its pod's network namespace.
    """
    seconds, servers = dict[int, float](), set[int]()
    for process in root.glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if not command.startswith(b"VLLM::") and b"/vllm\0serve\0" not in command:
                continue
            namespace = (process / "ns/net").stat().st_ino
            used_s = processor_seconds_of(int(process.name), root) or 0.0
            seconds[namespace] = seconds.get(namespace, 0.0) + used_s
            if command.startswith(b"VLLM::EngineCore"):
                servers.add(namespace)
    return {namespace: seconds[namespace] for namespace in servers}


def wait(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until `condition` returns true; return whether it did within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def random_text(words: int) -> str:
    """Return a text of a random number and `words` random words, which no server has cached."""
    return " ".join([f"{random.randrange(10**9)}", *random.choices(_WORDS, k=words)])  # noqa: S311 - no secret


def token_ids(length: int, seed: int) -> list[int]:
    """Return the token ids of a prompt, reproducible by `seed`; the last token is the same in all prompts."""
    return [*random.Random(seed).choices(range(10, 300), k=length - 1), 10]  # noqa: S311 - no secret
