"""Canaries: rounds of known prompts, and how answers are judged."""

import json
from collections.abc import Callable, Mapping

import httpx
import pytest
from llmd_base.addresses import PodAddress
from llmd_bench.canary import Canaries, CanaryMetrics
from llmd_bench.canary_request import CanaryRequest, CanaryUnit, from_json
from prometheus_client import CollectorRegistry

Answer = Callable[[str, Mapping[str, object]], httpx.Response]
KEPT = {"do_remote_prefill": True, "remote_engine_id": "e"}


def completion(text: str, **more: object) -> httpx.Response:
    return httpx.Response(200, json={"choices": [{"text": text}], **more})


def request_for(**servers: list[str]) -> CanaryRequest:
    return CanaryRequest(
        namespace="llm-d",
        model="m",
        units=(CanaryUnit("u", {role: {"role": role} for role in servers}),),
        ports={"prefill": 8000, "decode": 8200, "aggregated": 8000},
        version_label="version",
        prompts=("one", "two"),
        max_tokens=8,
        every_s=1,
        timeout_s=5,
    )


class Asked:
    """Canaries of servers that answer as told, and what they were asked."""

    def __init__(self, answer: Answer, **servers: list[str]) -> None:
        self.registry, self.bodies = CollectorRegistry(), list[tuple[str, dict[str, object]]]()

        def handle(request: httpx.Request) -> httpx.Response:
            body = json.loads(request.content)
            self.bodies.append((f"{request.url.host}:{request.url.port}", body))
            return answer(str(request.url.host), body)

        self.pods = {role: [PodAddress(name, name) for name in names] for role, names in servers.items()}
        client = httpx.Client(transport=httpx.MockTransport(handle))
        self.canaries = Canaries(
            request_for(**servers), lambda labels: self.pods[labels["role"]], client, CanaryMetrics(self.registry)
        )

    def counted(self, role: str, server: str, outcome: str) -> float:
        labels = {"unit": "u", "role": role, "server": server, "outcome": outcome}
        return self.registry.get_sample_value("llmd_oke_canary_answers_total", labels) or 0.0


def paired(decode: Answer) -> Answer:
    def answer(host: str, body: Mapping[str, object]) -> httpx.Response:
        return completion("t", kv_transfer_params=KEPT) if host.startswith("p") else decode(host, body)

    return answer


def test_each_round_of_canaries_sends_a_new_prompt_to_each_server_of_both_roles():
    asked = Asked(paired(lambda *_: completion("a")), prefill=["p0", "p1", "p2"], decode=["d0", "d1"])
    asked.canaries.round(0)
    asked.canaries.round(1)
    first, second = asked.bodies[:6], asked.bodies[6:]
    assert {address for address, _ in first} == {"p0:8000", "p1:8000", "p2:8000", "d0:8200", "d1:8200"}
    assert {body["prompt"] for _, body in first} == {"one"}
    assert {body["prompt"] for _, body in second} == {"two"}
    assert asked.counted("decode", "d0", "same") + asked.counted("decode", "d1", "same") == 6


def test_a_decode_server_gets_its_canary_prompts_kv_cache_by_transfer():
    asked = Asked(paired(lambda *_: completion("a")), prefill=["p"], decode=["d"])
    for number in range(2):
        asked.canaries.round(number)
    (_, first), (_, decode), (_, next_prompt), _ = asked.bodies
    assert first["max_tokens"] == 1
    assert decode["kv_transfer_params"] == KEPT
    assert decode["cache_salt"] == first["cache_salt"] != next_prompt["cache_salt"]
    assert decode["temperature"] == 0


def test_a_changed_canary_answer_is_counted_for_both_prefill_and_decode_server():
    answers = iter(["a", "b"])
    asked = Asked(paired(lambda *_: completion(next(answers))), prefill=["p"], decode=["d"])
    asked.canaries.round(0)
    asked.canaries.round(2)
    assert asked.counted("prefill", "p", "different") == asked.counted("decode", "d", "different") == 1


def test_canary_answers_of_a_models_aggregated_servers_are_compared_with_each_other():
    asked = Asked(lambda host, _: completion(host), aggregated=["s0", "s1"])
    asked.canaries.round(0)
    assert (asked.counted("aggregated", "s0", "same"), asked.counted("aggregated", "s1", "different")) == (1, 1)


def pod(name: str, *, started: bool = True, **labels: str) -> PodAddress:
    return PodAddress(name, name, started=started, labels=labels)


def test_only_started_servers_of_one_version_are_paired_for_canaries():
    asked = Asked(paired(lambda *_: completion("a")), prefill=[], decode=[])
    late = pod("p-late", started=False, version="1")
    asked.pods["prefill"] = [pod("p-old", version="1"), pod("p-new", version="2"), pod("p-newest", version="3"), late]
    asked.pods["decode"] = [pod("d-old", version="1"), pod("d-new", version="2")]
    asked.canaries.round(0)
    assert [address for address, _ in asked.bodies] == ["p-old:8000", "d-old:8200", "p-new:8000", "d-new:8200"]


def test_canary_answers_are_not_compared_between_servers_of_two_pod_templates():
    asked = Asked(lambda host, _: completion(host), aggregated=[])
    for template in ("old", "new"):
        asked.pods["aggregated"] = [pod(template, **{"pod-template-hash": template})]
        asked.canaries.round(0)
    assert (asked.counted("aggregated", "old", "different"), asked.counted("aggregated", "new", "different")) == (0, 0)


def test_the_canary_metrics_of_a_deleted_server_are_removed():
    asked = Asked(lambda *_: completion("a"), aggregated=["s0", "s1"])
    asked.canaries.round(0)
    asked.pods["aggregated"] = [pod("s1")]
    asked.canaries.round(1)
    servers = [{"unit": "u", "role": "aggregated", "server": name} for name in ("s0", "s1")]
    seconds = [asked.registry.get_sample_value("llmd_oke_canary_answer_seconds", labels) for labels in servers]
    assert [second is None for second in seconds] == [True, False]
    assert asked.counted("aggregated", "s0", "same") == 0


def test_a_prefill_server_that_hands_over_no_kv_cache_fails_its_canary_at_once():
    asked = Asked(lambda *_: completion("t"), prefill=["p"], decode=["d"])
    asked.canaries.round(0)
    assert asked.counted("prefill", "p", "nothing handed over") == 1
    assert [address for address, _ in asked.bodies] == ["p:8000"]


@pytest.mark.parametrize("response", [httpx.Response(500, json={}), httpx.Response(200, text="no JSON")])
def test_a_decode_server_without_a_canary_answer_counts_as_failed(response: httpx.Response):
    asked = Asked(paired(lambda *_: response), prefill=["p"], decode=["d"])
    asked.canaries.round(0)
    assert asked.counted("decode", "d", "failed") == 1
    assert asked.counted("prefill", "p", "failed") == 0


def test_the_configuration_of_canaries_is_read_back_as_it_was_written():
    request = request_for(prefill=["p"], decode=["d"])
    assert from_json(request.to_json()) == request
