"""Checks of vLLM's own servers in a rehearsal: answers, KV cache transfers, and robustness.

`python -m llmd_rehearsal.real_vllm.checks FACTS RESULTS` runs inside the rehearsal's network, with `KUBECONFIG` set.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod
from llmd_base.progress import PlainProgress
from llmd_oke.catalogue.container_images import job_images
from llmd_oke.catalogue.server_settings import SERVER_PORT
from pydantic import TypeAdapter

from llmd_rehearsal.real_vllm.checked_model import (
    CACHE,
    EXPIRED,
    HANDED_OVER,
    LEASE_LIMIT_S,
    READY_LIMIT_S,
    RECEIVED,
    REQUEST_LIMIT_S,
    RUNNING,
    SETTLE_LIMIT_S,
    TOKENS,
    TOLERANCE,
    CheckError,
    ModelFacts,
    Stack,
    VllmPod,
    posted,
    processor_seconds,
    random_text,
    samples_of,
    token_ids,
    wait,
)

PROMPT_WORDS = (60, 400, 1500)
"""Numbers of words of the prompts whose answers by different servers are compared."""

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Bergen"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

_END_OF_THOUGHT = "</think>"
"""Text that, at the end of a prompt, makes a reasoning parser treat the whole answer as final, so that schemas apply to
it.
"""

_THOUGHTFUL_PROMPTS = 3
_IDLE_CORES, _IDLE_S = 0.2, 10.0
"""Maximum use of a processor by a server without requests (1 is a whole one), and duration of its measurement in
seconds. Measured: 0.05 to 0.08, half of it for endpoint pickers that read metrics. A spinning thread takes 0.3 or more.
"""
_SPIN_S = 3.0
"""Time after a request during which vLLM's processes still spin, in seconds, with a margin: 1 s
(vllm/distributed/device_communicators/shm_broadcast.py, `SpinCondition`).
"""
_STREAM_S, _STREAM_TOKENS = 20.0, 4000
"""Duration of the stream during which a server is ended, in seconds, by the shortest of a few short answers, since the
first may take much longer than the others; and its maximum length in tokens.
"""
_REFUSED = frozenset((400, 403, 404, 413, 422))


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
"""Python program of a pod that ends with exit code 1 if a server answers."""


@dataclass(frozen=True)
class ServerCheck:
    """Result of one check of one model's vLLM servers; `evidence` describes the observations, `seconds` is the check's
    duration.
    """

    model: str
    check: str
    passed: bool
    evidence: str
    seconds: float


def same_answers(stack: Stack) -> str:
    """Check that answers through router, sidecar, prefill and decode server equal the answers of a single server."""
    furthest, equal = 0.0, 0
    for words in PROMPT_WORDS:
        prompt = random_text(words)
        before = stack.metric(RECEIVED, "decode")
        routed = stack.complete(stack.service, prompt)
        alone = stack.alone(prompt)
        if stack.grown(RECEIVED, "decode", before, 1) < 1:
            raise CheckError(f"the KV cache of a prompt of {alone.prompt_tokens} tokens was not handed over")
        difference = alone.difference(routed)
        furthest, equal = max(furthest, difference), equal + (routed.tokens == alone.tokens)
        if not stack.facts.accepts(routed, alone):
            raise CheckError(
                f"a prompt of {alone.prompt_tokens} tokens: {routed.tokens} in place of {alone.tokens}, the first "
                f"{difference:.3g} apart in log probability"
            )
    kind = "as they must be" if stack.facts.exact else f"first tokens within {TOLERANCE:g} of log probability must be"
    return f"{equal} of {len(PROMPT_WORDS)} answers equal token by token ({kind}); furthest apart {furthest:.2g}"


def handed_over_bytes(stack: Stack) -> str:
    """Check that a decode server fetches as many bytes as the prompt's KV cache blocks have."""
    said: list[str] = []
    for words in PROMPT_WORDS:
        before = stack.metric(HANDED_OVER, "decode")
        answer = stack.complete(stack.service, random_text(words))
        expected = stack.facts.handed_over_bytes(answer.prompt_tokens)
        grown = stack.grown(HANDED_OVER, "decode", before, expected)
        if grown != expected:
            raise CheckError(f"{grown:,.0f} bytes of a prompt of {answer.prompt_tokens} tokens, {expected:,} are due")
        said.append(f"{grown:,.0f} of {answer.prompt_tokens} tokens")
    return f"bytes: {'; '.join(said)}"


def swapped_prompts(stack: Stack) -> str:
    """Check that a decode server that is given another prompt's KV cache answers that other prompt, so that it uses the
    KV cache it was given.
    """
    length = 3 * stack.facts.block_size
    one, other = token_ids(length, seed=1), token_ids(length, seed=2)
    given = stack.complete(stack.servers("decode")[0], one, kv_transfer_params=stack.prefilled(other))
    own, others = stack.alone(one), stack.alone(other)
    evidence = f"first token by the other prompt {others.apart(given)}, by its own {own.apart(given)}"
    if others.difference(given) > TOLERANCE or own.difference(given) <= TOLERANCE:
        raise CheckError(evidence)
    return evidence


def swapped_blocks(stack: Stack) -> str:
    """Check that a wrong KV cache block changes the answer, so that comparisons of answers detect wrong blocks.

    The same blocks in another order would change nothing, because keys contain their positions.
    """
    prompt = token_ids(3 * stack.facts.block_size, seed=3)
    transfer = dict(stack.prefilled(prompt))
    transfer["remote_block_ids"] = [[*group[:1], *group[:1], *group[2:]] for group in transfer["remote_block_ids"]]
    given = stack.complete(stack.servers("decode")[0], prompt, kv_transfer_params=transfer)
    alone = stack.alone(prompt)
    if stack.facts.accepts(given, alone):
        raise CheckError(
            f"the answer by a wrong block counts as the right one, {alone.apart(given)}: it goes unnoticed"
        )
    return f"noticed: first token {alone.apart(given)}"


def apis(stack: Stack) -> str:
    """Check that all HTTP APIs of the rehearsed model answer, with and without streaming, and return what was checked.

    Raises:
        CheckError: an answer has no usage, or a stream no end.
    """
    model, text = stack.facts.repository, random_text(40)
    messages = [{"role": "user", "content": text}]
    bodies = {
        "completions": ("/v1/completions", {"prompt": text, "max_tokens": TOKENS}),
        "chat": ("/v1/chat/completions", {"messages": messages, "max_tokens": TOKENS}),
        "responses": ("/v1/responses", {"input": text, "max_output_tokens": TOKENS}),
    }
    for api in stack.facts.apis:
        path, body = bodies[api]
        document = posted(stack.service, path, {"model": model, **body}).json()
        if not (document.get("usage") or {}).get("total_tokens"):
            raise CheckError(f"{path} answers without usage: {json.dumps(document)[:200]}")
        events = posted(stack.service, path, {"model": model, "stream": True, **body}).text
        if "data: [DONE]" not in events and "response.completed" not in events and "response.incomplete" not in events:
            raise CheckError(f"the stream of {path} has no end: {events[-200:]}")
    return f"{', '.join(stack.facts.apis)}, each whole and as a stream"


def called_tools(stack: Stack) -> str:
    """Check that the call of a tool that the request names follows the tool's schema, and that `tool_choice: auto` is
    accepted.

    Tokens are sampled, and many are allowed, because a schema permits blanks, which a model with random weights may
    repeat endlessly.
    """
    message = {"role": "user", "content": f"{random_text(20)} {_END_OF_THOUGHT}"}
    asked = {"model": stack.facts.repository, "tools": [_TOOL], "messages": [message], "temperature": 1}
    posted(stack.service, "/v1/chat/completions", {**asked, "tool_choice": "auto", "max_tokens": TOKENS})
    if not stack.facts.calls_by_schema:
        return "requests with tools are answered; no schema holds a model of Harmony's format to a call"
    by_name = {"type": "function", "function": {"name": _TOOL["function"]["name"]}}
    body = {**asked, "tool_choice": by_name, "max_tokens": 1000}
    (choice,) = posted(stack.service, "/v1/chat/completions", body).json()["choices"]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    if [(call["name"], json.loads(call["arguments"])) for call in calls] != [("weather", {"city": "Bergen"})]:
        raise CheckError(f"the answer to a request that names a tool is {choice}")
    return "a call as the tool's schema has it; the choice may be left to the server"


def reasoning(stack: Stack) -> str:
    """Check that a model's reasoning is in a field of its own and is the same with and without streaming.

    A model with random weights may end its reasoning at any token, even the first, so that several prompts are tried.
    """
    for _ in range(_THOUGHTFUL_PROMPTS):
        body = {
            "model": stack.facts.repository,
            "messages": [{"role": "user", "content": random_text(20)}],
            "temperature": 0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "chat_template_kwargs": {"thinking": True},  # DeepSeek-V3.1 thinks only where it is asked to
        }
        (choice,) = posted(stack.service, "/v1/chat/completions", body).json()["choices"]
        whole = choice["message"].get("reasoning") or ""
        events = posted(stack.service, "/v1/chat/completions", {**body, "stream": True}).text.splitlines()
        documents = [json.loads(line.removeprefix("data: ")) for line in events if line.startswith("data: {")]
        deltas = [choice["delta"] for document in documents for choice in document["choices"]]
        streamed = "".join(delta.get("reasoning") or "" for delta in deltas)
        if streamed != whole:
            raise CheckError(f"streamed thoughts are {streamed!r}, whole ones {whole!r}")
        if whole:
            return f"{len(whole)} characters of thoughts, the same whole and as a stream"
    raise CheckError(f"none of {_THOUGHTFUL_PROMPTS} answers has thoughts of its own")


def metrics(stack: Stack) -> str:
    """Check that the vLLM servers expose every metric that rules, dashboards, `status` and benchmarks read."""
    for client in stack.servers():
        samples = samples_of(client)
        names = {name.removesuffix(end) for name in samples for end in ("", "_total", "_bucket", "_count", "_sum")}
        if missing := [name for name in stack.facts.metrics if name not in names]:
            raise CheckError(f"{client.base_url} lacks {', '.join(missing)}")
    return f"{len(stack.facts.metrics)} names on {len(stack.servers())} servers"


HOSTILE: tuple[Mapping[str, Any], ...] = (
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "do_remote_decode": True},
    {"do_remote_prefill": True, "remote_host": "169.254.169.254", "remote_port": 80, "remote_block_ids": [[1]]},
)
"""Values of `kv_transfer_params` that a client might send to do harm; each of the first two crashes a vLLM 0.26 server
that receives it.
"""


def hostile_requests(stack: Stack) -> str:
    """Check that requests with `kv_transfer_params`, sent through the model's Service and the routers, crash no
    server.
    """
    before, refused, sent = stack.restarts(), 0, 0
    for entrance in stack.entrances:
        for params in HOSTILE:
            body = {
                "model": stack.facts.repository,
                "prompt": random_text(30),
                "max_tokens": 2,
                "kv_transfer_params": params,
            }
            for path in ("/v1/completions", "/v1//completions", "/v1/completions/"):
                response = entrance.post(path, json=body)
                if response.status_code not in _REFUSED | {200}:
                    raise CheckError(f"{path} with {json.dumps(params)} is answered with {response.status_code}")
                refused, sent = refused + (response.status_code in _REFUSED), sent + 1
    stack.complete(stack.service, random_text(30))
    if (after := stack.restarts()) != before:
        raise CheckError(f"{after - before} servers were started again")
    return f"{refused} of {sent} requests refused, at {len(stack.entrances)} entrances; no server ended"


def foreign_pods(stack: Stack) -> str:
    """Check that a pod of another namespace, whose requests no router filters, reaches no vLLM server or sidecar."""
    if not stack.facts.policies_enforced:
        return "not tried: this machine can't filter packets, so that NetworkPolicies are not enforced"
    urls = [client.base_url for client in stack.servers()]
    servers = sorted({str(of_port) for url in urls for of_port in (url, url.copy_with(port=SERVER_PORT))})
    name = f"foreign-{random.randrange(10**6)}"  # noqa: S311 - no secret
    command = ["python3", "-c", _FOREIGN, json.dumps(HOSTILE[0]), *servers]
    container = Container(name="foreign", image=job_images().python.reference, command=command)
    spec = PodSpec(containers=[container], restartPolicy="Never")
    stack.cluster.create(Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=spec))

    def phase() -> str | None:
        status = stack.cluster.get(Pod, name, namespace="default").status
        return status.phase if status else None

    try:
        if not wait(lambda: phase() in {"Succeeded", "Failed"}, REQUEST_LIMIT_S):
            raise CheckError(f"the pod is {phase()}")
        if phase() == "Failed":
            raise CheckError("a server answered it")
    finally:
        stack.cluster.delete(Pod, name, namespace="default")
    return f"none of {len(servers)} ports of {len(urls)} servers answered it"


def aborted_requests(stack: Stack) -> str:
    """Check that a client that disconnects before the end of its answer leaves no running request and no KV cache
    blocks.
    """
    for _ in range(3):
        body = {"model": stack.facts.repository, "prompt": random_text(300), "max_tokens": 2000, "ignore_eos": True}
        with stack.service.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            next(response.iter_lines())
    began = time.monotonic()
    if not stack.at_rest():
        raise CheckError(f"{stack.metric(RUNNING):g} requests run, {stack.metric(CACHE):.2%} of a KV cache are in use")
    return f"3 of them, and all servers at rest {time.monotonic() - began:.1f} s later"


def idle_servers(stack: Stack) -> str:
    """Check that servers without requests leave the processor alone, so that many fit one machine."""
    if not stack.at_rest():
        raise CheckError(f"{stack.metric(RUNNING):g} requests run")
    time.sleep(_SPIN_S)
    before, began = processor_seconds(), time.monotonic()
    time.sleep(_IDLE_S)
    passed_s = time.monotonic() - began
    cores = [(used - before[pod]) / passed_s for pod, used in processor_seconds().items() if pod in before]
    if len(cores) < len(stack.servers()):
        raise CheckError(f"processor time of {len(cores)} of {len(stack.servers())} servers can be read")
    if max(cores) > _IDLE_CORES:
        raise CheckError(f"a server without requests uses {max(cores):.2f} of a core, at most {_IDLE_CORES:g} is due")
    return f"{len(cores)} servers use at most {max(cores):.2f} of a core each, measured over {passed_s:.0f} s"


def ended_leases(stack: Stack) -> str:
    """Check that KV cache blocks that no decode server fetches are freed when their lease expires, and are counted."""
    before = stack.metric(EXPIRED, "prefill")
    stack.prefilled(token_ids(3 * stack.facts.block_size, seed=random.randrange(10**6)))  # noqa: S311 - no secret
    began = time.monotonic()
    if not wait(lambda: stack.metric(EXPIRED, "prefill") > before, LEASE_LIMIT_S):
        raise CheckError(f"{EXPIRED} hasn't grown within {LEASE_LIMIT_S:g} s")
    if not stack.at_rest(SETTLE_LIMIT_S):
        raise CheckError(f"{stack.metric(CACHE):.2%} of a KV cache are in use after the lease")
    return f"ended after {time.monotonic() - began:.0f} s, counted, and no block kept"


def restarted_prefill(stack: Stack) -> str:
    """Check that all decode servers work with the replacement of a prefill server that they were connected to."""
    pods = stack.pods("prefill")
    known = {pod.name for pod in pods}
    pulled_by_all(stack, pods[0].client)
    stack.end(pods[0])
    began = time.monotonic()
    stack.ready("prefill", len(pods))
    ready_s = time.monotonic() - began
    (replacement,) = (pod for pod in stack.pods("prefill") if pod.name not in known)
    count = pulled_by_all(stack, replacement.client)
    return f"ready again after {ready_s:.0f} s; {count} that knew it pull from it; {same_answers(stack)}"


def pulled_by_all(stack: Stack, prefill: httpx2.Client) -> int:
    """Let each decode server pull a prompt's KV cache from a prefill server, and return the number of decode servers.

    Raises:
        CheckError: an answer isn't that of a single server.
    """
    decoding = stack.servers("decode")
    for server in decoding:
        prompt = token_ids(3 * stack.facts.block_size, seed=random.randrange(10**6))  # noqa: S311 - no secret
        given = stack.complete(server, prompt, kv_transfer_params=stack.prefilled(prompt, prefill))
        if not stack.facts.accepts(given, alone := stack.alone(prompt)):
            raise CheckError(
                f"{server.base_url} answers otherwise by KV cache of {prefill.base_url}: {alone.apart(given)}"
            )
    return len(decoding)


def drained_server(stack: Stack) -> str:
    """Check that a server whose pod is deleted finishes its stream."""
    role = "decode" if stack.facts.disaggregated else "aggregated"
    pods = stack.pods(role)
    tokens = min(int(TOKENS * _STREAM_S / min(answer_s(stack) for _ in range(3))), _STREAM_TOKENS)
    body = {"model": stack.facts.repository, "prompt": random_text(100), "max_tokens": tokens, "ignore_eos": True}
    events, last = 0, ""
    with ThreadPoolExecutor(1) as executor:
        ending = executor.submit(end_busy_server, stack, pods)
        with stack.service.stream(
            "POST", "/v1/completions", json={**body, "stream": True}, timeout=READY_LIMIT_S
        ) as response:
            for line in response.iter_lines():
                events += ending.done() and line.startswith("data: {")
                last = line or last
        ended = ending.result()
    if last != "data: [DONE]" or not events:
        raise CheckError(f"the stream ended with {last[:200]!r}, {events} events after the server was to end")
    stack.ready(role, len(pods))
    return f"{events} events after {ended.name} was to end, to the last; another one is ready"


def answer_s(stack: Stack) -> float:
    """Return the duration of a short answer in seconds."""
    began = time.monotonic()
    stack.complete(stack.service, random_text(100))
    return time.monotonic() - began


def end_busy_server(stack: Stack, pods: Sequence[VllmPod]) -> VllmPod:
    """Delete the first of the pods whose server runs a request, and return it.

    Raises:
        CheckError: none runs one within `REQUEST_LIMIT_S`.
    """
    busy = list[VllmPod]()

    def at_work() -> bool:
        busy[:] = [pod for pod in pods if samples_of(pod.client).get(RUNNING)]
        return bool(busy)

    if not wait(at_work, REQUEST_LIMIT_S):
        raise CheckError("no server runs the request")
    stack.end(busy[0])
    return busy[0]


Check = Callable[[Stack], str]

OF_FEATURES: Mapping[str, Check] = {"tool-calling": called_tools, "reasoning": reasoning}

OF_ALL: tuple[Check, ...] = (apis, metrics, hostile_requests, foreign_pods, aborted_requests, idle_servers)
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
    idle_servers,
    ended_leases,
    restarted_prefill,
    drained_server,
)


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
    """Check the vLLM servers of the models that the facts file describes, write the results file, and return 1 if a
    check failed.
    """
    parser = argparse.ArgumentParser(prog="llmd_rehearsal.real_vllm.checks", description=__doc__)
    parser.add_argument("facts", type=Path, help="JSON file: a list of ModelFacts")
    parser.add_argument("results", type=Path, help="JSON file to write: a list of ServerCheck")
    arguments = parser.parse_args()
    models = TypeAdapter(tuple[ModelFacts, ...]).validate_json(arguments.facts.read_bytes())
    config = KubeConfig.from_file(os.environ["KUBECONFIG"]).get()
    cluster = Client(config=config, timeout=httpx2.Timeout(REQUEST_LIMIT_S), trust_env=False)
    results: list[ServerCheck] = []
    for facts in models:
        of_features = [OF_FEATURES[name] for name in facts.features]
        checks = (*of_features, *(OF_DISAGGREGATED if facts.disaggregated else (*OF_ALL, drained_server)))
        with ExitStack() as exits:
            stack = Stack(facts, cluster, PlainProgress(), exits)
            results += [_result(stack, check) for check in checks]
    unfinished = arguments.results.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(result) for result in results], indent=2))
    unfinished.replace(arguments.results)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
