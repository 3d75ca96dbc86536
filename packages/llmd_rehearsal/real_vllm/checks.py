"""Checks of servers of vLLM itself in a rehearsal: what they answer and hand over, and what they survive.

`python -m llmd_rehearsal.real_vllm.checks FACTS RESULTS` runs inside the rehearsal's network, with `KUBECONFIG` set.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import httpx2
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from llmd_base.progress import PlainProgress, Progress
from llmd_bench.queries import parse
from llmd_oke.catalogue.container_images import job_images
from llmd_tuner.latency import window_blocks
from pydantic import TypeAdapter

PROMPT_WORDS = (60, 400, 1500)
"""Words of the prompts whose answers are compared."""

TOKENS = 16
TOLERANCE = 0.1
"""Most that the logarithm of a first token's probability may differ where sums are rounded otherwise: in BF16, or with
other tensor parallel sizes.
"""

HANDED_OVER = "vllm:nixl_bytes_transferred_sum"
RECEIVED = "vllm:external_prefix_cache_hits_total"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
RUNNING, CACHE = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"

_REQUEST_LIMIT_S, _SETTLE_LIMIT_S, _LEASE_LIMIT_S, _READY_LIMIT_S = 120.0, 20.0, 60.0, 240.0
_PAUSE_S = 0.5
_REFUSED = frozenset((400, 403, 404, 413, 422))
_WORDS = ("hello", "world", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "one", "two", "three", "four")


_FOREIGN = """
import sys, urllib.error, urllib.request
params, *servers = sys.argv[1:]
body = ('{"model": "m", "prompt": "hello", "max_tokens": 1, "kv_transfer_params": %s}' % params).encode()
for server in servers:
    request = urllib.request.Request(server + "/v1/completions", body, {"content-type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=3)
    except urllib.error.HTTPError:
        sys.exit(1)
    except OSError:
        continue
    sys.exit(1)
"""
"""Program of a pod: ends with 1 where a server answers at all."""


class CheckError(Exception):
    """A check that fails; the message says what it found."""


@dataclass(frozen=True)
class ServerGroup:
    """Servers of one role: the labels of their pods, and the port of vLLM."""

    role: str
    selector: Mapping[str, str]
    port: int


@dataclass(frozen=True)
class ModelFacts:
    """A model that is checked: its Service and those of its routers, its servers, and what is expected of its tiny one.

    Bytes are those of a block over all layers that see all tokens, and over those that see a window; `exact` is true
    where prefill and decode servers round alike, in FP32 and with one tensor parallel size. `metrics` are names without
    their endings.
    """

    name: str
    namespace: str
    service: str
    routers: tuple[str, ...]
    policies_enforced: bool
    repository: str
    apis: tuple[str, ...]
    groups: tuple[ServerGroup, ...]
    block_size: int
    full_block_bytes: int
    windowed_block_bytes: int
    window_tokens: int | None
    exact: bool
    metrics: tuple[str, ...]

    @property
    def disaggregated(self) -> bool:
        """Tell whether KV cache is handed over."""
        return {group.role for group in self.groups} >= {"prefill", "decode"}

    def handed_over_bytes(self, tokens: int) -> int:
        """Return the bytes that a decode server reads of a prompt's KV cache: whole blocks, of windowed layers those
        that the next token sees.
        """
        whole = -(-tokens // self.block_size) * self.full_block_bytes
        if self.window_tokens is None:
            return whole
        return whole + window_blocks(tokens, self.window_tokens, self.block_size) * self.windowed_block_bytes


@dataclass(frozen=True)
class ServerCheck:
    """Result of a check of one model; `evidence` says in words what it rests on."""

    model: str
    check: str
    passed: bool
    evidence: str
    seconds: float


@dataclass(frozen=True)
class Answer:
    """An answer of a model: its tokens, and logarithms of the probabilities of the first's likeliest ones."""

    tokens: tuple[str, ...]
    first: Mapping[str, float]
    prompt_tokens: int
    transfer: Mapping[str, Any] | None = None

    def apart(self, other: "Answer") -> str:
        """Say how far another answer's first token is from the likeliest of this one."""
        difference = self.difference(other)
        return f"{difference:.2g} apart" if isfinite(difference) else "not among the likeliest"

    def difference(self, other: "Answer") -> float:
        """Return how far another answer's first token is from the likeliest of this one; infinite if it isn't among
        the likeliest there.
        """
        likeliest = max(self.first, key=lambda token: self.first[token])
        return abs(self.first[likeliest] - other.first.get(likeliest, float("inf")))


@dataclass(frozen=True)
class VllmPod:
    """A pod of a server: the way to its vLLM, whether it is ready, and how often its containers were started again."""

    name: str
    client: httpx2.Client
    ready: bool
    restarts: int


@dataclass
class Stack:
    """Ways to a model's Service and servers."""

    facts: ModelFacts
    cluster: Client
    progress: Progress
    exits: ExitStack
    clients: dict[str, httpx2.Client] = field(default_factory=dict[str, httpx2.Client])

    @property
    def service(self) -> httpx2.Client:
        """The model's Service, as its clients have it."""
        return self._service(self.facts.service)

    @property
    def entrances(self) -> list[httpx2.Client]:
        """The model's Service, and those of its routers behind it."""
        return [self.service, *map(self._service, self.facts.routers)]

    def _service(self, name: str) -> httpx2.Client:
        return self.client(f"http://{name}.{self.facts.namespace}.svc.cluster.local")

    def client(self, url: str) -> httpx2.Client:
        """Return a client of an address, the same for each address."""
        if url not in self.clients:
            opened = httpx2.Client(base_url=url, timeout=_REQUEST_LIMIT_S, trust_env=False)
            self.clients[url] = self.exits.enter_context(opened)
        return self.clients[url]

    def pods(self, role: str) -> list[VllmPod]:
        """Return the pods of a role that have an address and are to stay."""
        group = self._group(role)
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
        """Return clients of vLLM in the pods of some roles, past sidecars and routers; of all if none is named."""
        return [pod.client for role in roles or self.roles for pod in self.pods(role)]

    def end(self, pod: VllmPod) -> None:
        """Delete a pod, which a Deployment replaces."""
        self.cluster.delete(Pod, pod.name, namespace=self.facts.namespace)

    @property
    def roles(self) -> list[str]:
        """Roles of the model's servers."""
        return [group.role for group in self.facts.groups]

    def _group(self, role: str) -> ServerGroup:
        return next(group for group in self.facts.groups if group.role == role)

    def complete(self, client: httpx2.Client, prompt: str | list[int], **more: Any) -> Answer:
        """Return the greedy answer to a prompt.

        Raises:
            CheckError: it is refused.
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
        document = _posted(client, "/v1/completions", body).json()
        (choice,) = document["choices"]
        found = choice["logprobs"]
        return Answer(
            tuple(found["tokens"]),
            found["top_logprobs"][0],
            document["usage"]["prompt_tokens"],
            document.get("kv_transfer_params"),
        )

    def alone(self, prompt: str | list[int]) -> Answer:
        """Return the answer of one decode server that computes all of it: no other request has its salt."""
        client = self.servers("decode" if self.facts.disaggregated else "aggregated")[0]
        return self.complete(client, prompt, cache_salt=f"{random.random()}")  # noqa: S311 - no secret

    def prefilled(self, prompt: list[int]) -> Mapping[str, Any]:
        """Return by what a decode server finds the KV cache of a prompt that a prefill server has computed.

        Raises:
            CheckError: the prefill server says nothing of it.
        """
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        answer = self.complete(self.servers("prefill")[0], prompt, max_tokens=1, kv_transfer_params=asked)
        if answer.transfer is None:
            raise CheckError("a prefill server answers without kv_transfer_params")
        return answer.transfer

    def metric(self, name: str, *roles: str) -> float:
        """Return the sum of a metric over all servers of some roles."""
        return sum(_samples(client).get(name, 0.0) for client in self.servers(*roles))

    def grown(self, name: str, role: str, before: float, expected: float) -> float:
        """Return by how much a counter has grown since, when it is as much as expected or time is over: vLLM counts
        transfers with a later step.
        """
        _wait(lambda: self.metric(name, role) - before >= expected, _SETTLE_LIMIT_S)
        return self.metric(name, role) - before

    def at_rest(self, limit_s: float = _LEASE_LIMIT_S) -> bool:
        """Wait until no server runs a request or keeps a block for one; return whether that came in time."""
        return _wait(lambda: self.metric(RUNNING) == 0 and self.metric(CACHE) == 0, limit_s)

    def ready(self, role: str, count: int) -> None:
        """Wait until as many pods of a role are ready.

        Raises:
            CheckError: they are not in time.
        """

        def are_ready() -> bool:
            pods = self.pods(role)
            return len(pods) == count and all(pod.ready for pod in pods)

        if not _wait(are_ready, _READY_LIMIT_S):
            raise CheckError(f"not all {count} {role} servers were ready again within {_READY_LIMIT_S:g} s")

    def restarts(self) -> int:
        """Return how often containers of all servers have been started again."""
        return sum(pod.restarts for role in self.roles for pod in self.pods(role))


def _posted(client: httpx2.Client, path: str, body: Mapping[str, Any]) -> httpx2.Response:
    try:
        response = client.post(path, json=body)
    except httpx2.HTTPError as error:
        raise CheckError(f"{client.base_url}{path} doesn't answer: {error!r}") from error
    if response.is_error:
        raise CheckError(f"{path} answers {response.status_code}: {response.text[:200]}")
    return response


def _samples(client: httpx2.Client) -> dict[str, float]:
    """Return all samples of a server's metrics by name, summed over labels; nothing where it doesn't answer."""
    try:
        text = client.get("/metrics").text
    except httpx2.HTTPError:
        return {}
    return {name: sum(sample.value for sample in samples) for name, samples in parse(text).items()}


def _wait(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def _text(words: int) -> str:
    """Return words that no server has seen."""
    return " ".join([f"{random.randrange(10**9)}", *random.choices(_WORDS, k=words)])  # noqa: S311 - no secret


def _ids(length: int, seed: int) -> list[int]:
    """Return tokens of a prompt, the last of which is the same in all."""
    return [*random.Random(seed).choices(range(10, 300), k=length - 1), 10]  # noqa: S311 - no secret


def same_answers(stack: Stack) -> str:
    """Answers by way of router, sidecar, prefill and decode server are those of one server that computes all of it."""
    furthest, equal = 0.0, 0
    for words in PROMPT_WORDS:
        prompt = _text(words)
        before = stack.metric(RECEIVED, "decode")
        routed = stack.complete(stack.service, prompt)
        alone = stack.alone(prompt)
        if stack.grown(RECEIVED, "decode", before, 1) < 1:
            raise CheckError(f"the KV cache of a prompt of {alone.prompt_tokens} tokens was not handed over")
        difference = alone.difference(routed)
        furthest, equal = max(furthest, difference), equal + (routed.tokens == alone.tokens)
        if difference > TOLERANCE or (stack.facts.exact and routed.tokens != alone.tokens):
            raise CheckError(
                f"a prompt of {alone.prompt_tokens} tokens: {routed.tokens} in place of {alone.tokens}, the first "
                f"{difference:.3g} apart in log probability"
            )
    kind = "as they must be" if stack.facts.exact else f"first tokens within {TOLERANCE:g} of log probability must be"
    return f"{equal} of {len(PROMPT_WORDS)} answers equal token by token ({kind}); furthest apart {furthest:.2g}"


def handed_over_bytes(stack: Stack) -> str:
    """Bytes that are handed over are those of the prompt's blocks, of windowed layers the last."""
    said: list[str] = []
    for words in PROMPT_WORDS:
        before = stack.metric(HANDED_OVER, "decode")
        answer = stack.complete(stack.service, _text(words))
        expected = stack.facts.handed_over_bytes(answer.prompt_tokens)
        grown = stack.grown(HANDED_OVER, "decode", before, expected)
        if grown != expected:
            raise CheckError(f"{grown:,.0f} bytes of a prompt of {answer.prompt_tokens} tokens, {expected:,} are due")
        said.append(f"{grown:,.0f} of {answer.prompt_tokens} tokens")
    return f"bytes: {'; '.join(said)}"


def swapped_prompts(stack: Stack) -> str:
    """A decode server that is given another prompt's KV cache answers that prompt: it answers by what it is handed."""
    length = 3 * stack.facts.block_size
    one, other = _ids(length, seed=1), _ids(length, seed=2)
    given = stack.complete(stack.servers("decode")[0], one, kv_transfer_params=stack.prefilled(other))
    own, others = stack.alone(one), stack.alone(other)
    evidence = f"first token by the other prompt {others.apart(given)}, by its own {own.apart(given)}"
    if others.difference(given) > TOLERANCE or own.difference(given) <= TOLERANCE:
        raise CheckError(evidence)
    return evidence


def swapped_blocks(stack: Stack) -> str:
    """A block that arrives in another's place changes the answer, so that the comparison of answers would see it.

    Keys carry their positions, so that the order alone of the same blocks changes nothing.
    """
    prompt = _ids(3 * stack.facts.block_size, seed=3)
    transfer = dict(stack.prefilled(prompt))
    transfer["remote_block_ids"] = [[*group[:1], *group[:1], *group[2:]] for group in transfer["remote_block_ids"]]
    given = stack.complete(stack.servers("decode")[0], prompt, kv_transfer_params=transfer)
    alone = stack.alone(prompt)
    if alone.difference(given) <= TOLERANCE and given.tokens == alone.tokens:
        raise CheckError("the answer by a wrong block is the right one: nothing would be noticed")
    return f"noticed: first token {alone.apart(given)}"


def apis(stack: Stack) -> str:
    """All APIs of the model answer, whole and as streams."""
    model, text = stack.facts.repository, _text(40)
    messages = [{"role": "user", "content": text}]
    bodies = {
        "completions": ("/v1/completions", {"prompt": text, "max_tokens": TOKENS}),
        "chat": ("/v1/chat/completions", {"messages": messages, "max_tokens": TOKENS}),
        "responses": ("/v1/responses", {"input": text, "max_output_tokens": TOKENS}),
    }
    for api in stack.facts.apis:
        path, body = bodies[api]
        document = _posted(stack.service, path, {"model": model, **body}).json()
        if not (document.get("usage") or {}).get("total_tokens"):
            raise CheckError(f"{path} answers without usage: {json.dumps(document)[:200]}")
        events = _posted(stack.service, path, {"model": model, "stream": True, **body}).text
        if "data: [DONE]" not in events and "response.completed" not in events and "response.incomplete" not in events:
            raise CheckError(f"the stream of {path} has no end: {events[-200:]}")
    return f"{', '.join(stack.facts.apis)}, each whole and as a stream"


def metrics(stack: Stack) -> str:
    """Every metric that rules, dashboards, status and benchmarks read has that name."""
    for client in stack.servers():
        samples = _samples(client)
        names = {name.removesuffix(end) for name in samples for end in ("", "_total", "_bucket", "_count", "_sum")}
        if missing := [name for name in stack.facts.metrics if name not in names]:
            raise CheckError(f"{client.base_url} lacks {', '.join(missing)}")
    return f"{len(stack.facts.metrics)} names on {len(stack.servers())} servers"


HOSTILE: tuple[Mapping[str, Any], ...] = (
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "do_remote_decode": True},
    {"do_remote_prefill": True, "remote_host": "169.254.169.254", "remote_port": 80, "remote_block_ids": [[1]]},
)
"""Values of `kv_transfer_params`; the first two end a server of vLLM 0.26 that gets them."""


def hostile_requests(stack: Stack) -> str:
    """Requests that say where KV cache is to come from end no server, by way of the model's Service and of routers."""
    before, refused, sent = stack.restarts(), 0, 0
    for entrance in stack.entrances:
        for params in HOSTILE:
            body = {"model": stack.facts.repository, "prompt": _text(30), "max_tokens": 2, "kv_transfer_params": params}
            for path in ("/v1/completions", "/v1//completions", "/v1/completions/"):
                response = entrance.post(path, json=body)
                if response.status_code not in _REFUSED | {200}:
                    raise CheckError(f"{path} with {json.dumps(params)} is answered with {response.status_code}")
                refused, sent = refused + (response.status_code in _REFUSED), sent + 1
    stack.complete(stack.service, _text(30))
    if (after := stack.restarts()) != before:
        raise CheckError(f"{after - before} servers were started again")
    return f"{refused} of {sent} requests refused, at {len(stack.entrances)} entrances; no server ended"


def foreign_pods(stack: Stack) -> str:
    """A pod of another namespace, which nothing keeps from saying where KV cache comes from, reaches no server."""
    if not stack.facts.policies_enforced:
        return "not tried: this machine can't filter packets, so that NetworkPolicies are not enforced"
    servers = [str(client.base_url) for client in stack.servers()]
    name = f"foreign-{random.randrange(10**6)}"  # noqa: S311 - no secret
    command = ["python3", "-c", _FOREIGN, json.dumps(HOSTILE[0]), *servers]
    container = Container(name="foreign", image=job_images().python.reference, command=command)
    spec = PodSpec(containers=[container], restartPolicy="Never")
    stack.cluster.create(Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=spec))

    def phase() -> str | None:
        status = stack.cluster.get(Pod, name, namespace="default").status
        return status.phase if status else None

    try:
        if not _wait(lambda: phase() in {"Succeeded", "Failed"}, _REQUEST_LIMIT_S):
            raise CheckError(f"the pod is {phase()}")
        if phase() == "Failed":
            raise CheckError("a server answered it")
    finally:
        stack.cluster.delete(Pod, name, namespace="default")
    return f"none of {len(servers)} servers answered it"


def aborted_requests(stack: Stack) -> str:
    """A client that goes in the middle of its answer leaves no request and no block behind."""
    for _ in range(3):
        body = {"model": stack.facts.repository, "prompt": _text(300), "max_tokens": 2000, "ignore_eos": True}
        with stack.service.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            next(response.iter_lines())
    began = time.monotonic()
    if not stack.at_rest():
        raise CheckError(f"{stack.metric(RUNNING):g} requests run, {stack.metric(CACHE):.2%} of a KV cache are in use")
    return f"3 of them, and all servers at rest {time.monotonic() - began:.1f} s later"


def ended_leases(stack: Stack) -> str:
    """Blocks of a prompt that no decode server fetches are given back when their lease ends, and are counted."""
    before = stack.metric(EXPIRED, "prefill")
    stack.prefilled(_ids(3 * stack.facts.block_size, seed=random.randrange(10**6)))  # noqa: S311 - no secret
    began = time.monotonic()
    if not _wait(lambda: stack.metric(EXPIRED, "prefill") > before, _LEASE_LIMIT_S):
        raise CheckError(f"{EXPIRED} hasn't grown within {_LEASE_LIMIT_S:g} s")
    if not stack.at_rest(_SETTLE_LIMIT_S):
        raise CheckError(f"{stack.metric(CACHE):.2%} of a KV cache are in use after the lease")
    return f"ended after {time.monotonic() - began:.0f} s, counted, and no block kept"


def restarted_prefill(stack: Stack) -> str:
    """Decode servers that knew a prefill server go on with the one that takes its place."""
    pods = stack.pods("prefill")
    stack.end(pods[0])
    began = time.monotonic()
    stack.ready("prefill", len(pods))
    return f"ready again after {time.monotonic() - began:.0f} s; {same_answers(stack)}"


def drained_server(stack: Stack) -> str:
    """A server that is to end finishes the stream that it is at."""
    role = "decode" if stack.facts.disaggregated else "aggregated"
    pods = stack.pods(role)
    body = {"model": stack.facts.repository, "prompt": _text(100), "max_tokens": 300, "ignore_eos": True}
    events = 0
    with stack.service.stream(
        "POST", "/v1/completions", json={**body, "stream": True}, timeout=_READY_LIMIT_S
    ) as response:
        lines = response.iter_lines()
        next(lines)
        busy = [pod for pod in pods if _samples(pod.client).get(RUNNING)]
        if not busy:
            raise CheckError("no server runs the request")
        stack.end(busy[0])
        last = ""
        for line in lines:
            events += line.startswith("data: {")
            last = line or last
    if last != "data: [DONE]":
        raise CheckError(f"the stream ended after {events} events with {last[:200]!r}")
    stack.ready(role, len(pods))
    return f"{events + 1} events after {busy[0].name} was to end, to the last; another one is ready"


Check = Callable[[Stack], str]

OF_ALL: tuple[Check, ...] = (apis, metrics, hostile_requests, foreign_pods, aborted_requests)
OF_DISAGGREGATED: tuple[Check, ...] = (
    same_answers,
    handed_over_bytes,
    swapped_prompts,
    swapped_blocks,
    apis,
    metrics,
    hostile_requests,
    foreign_pods,
    aborted_requests,
    ended_leases,
    restarted_prefill,
    drained_server,
)


def check_all(models: Sequence[ModelFacts], cluster: Client, progress: Progress) -> Iterator[ServerCheck]:
    """Yield what each check of each model found, one after the other."""
    for facts in models:
        with ExitStack() as exits:
            stack = Stack(facts, cluster, progress, exits)
            for check in OF_DISAGGREGATED if facts.disaggregated else (*OF_ALL, drained_server):
                yield _result(stack, check)


def _result(stack: Stack, check: Check) -> ServerCheck:
    began = time.monotonic()
    name = check.__name__.replace("_", " ")
    stack.progress.step(f"{stack.facts.name}: {name}")
    try:
        evidence, passed = check(stack), True
    except (CheckError, httpx2.HTTPError, ApiError, KeyError, ValueError, StopIteration) as error:
        evidence, passed = str(error) or repr(error), False
    return ServerCheck(stack.facts.name, name, passed, evidence, round(time.monotonic() - began, 1))


def main() -> int:
    """Check the models of a file of facts, and write the results into another."""
    parser = argparse.ArgumentParser(prog="llmd_rehearsal.real_vllm.checks", description=__doc__)
    parser.add_argument("facts", type=Path, help="JSON file: a list of ModelFacts")
    parser.add_argument("results", type=Path, help="JSON file to write: a list of ServerCheck")
    arguments = parser.parse_args()
    models = TypeAdapter(tuple[ModelFacts, ...]).validate_json(arguments.facts.read_bytes())
    config = KubeConfig.from_file(os.environ["KUBECONFIG"]).get()
    cluster = Client(config=config, timeout=httpx2.Timeout(_REQUEST_LIMIT_S), trust_env=False)
    results = list(check_all(models, cluster, PlainProgress()))
    unfinished = arguments.results.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(result) for result in results], indent=2))
    unfinished.replace(arguments.results)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
