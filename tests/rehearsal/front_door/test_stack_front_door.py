import hashlib
import json
from typing import Any

import pytest
from llmd_oke.serving.envoy_bounds import bounds
from stack_front_door_clients import CACHE_SECRET

pytestmark = pytest.mark.rehearsal

PROGRAM = "stack_front_door_clients.py"


@pytest.fixture(scope="module")
def routed(seen: dict[str, Any]) -> dict[str, Any]:
    return seen["routed"]


@pytest.fixture(scope="module")
def guarded(seen: dict[str, Any]) -> dict[str, Any]:
    return seen["guarded"]


def error(answer: dict[str, Any]) -> tuple[int, str, str]:
    """Status, code and words of an error in the form of OpenAI's API."""
    problem = answer["document"]["error"]
    assert set(problem) == {"message", "type", "param", "code"}
    assert answer["headers"]["content-type"] == "application/json"
    return answer["status"], problem["code"], problem["message"]


def lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def test_the_front_door_routes_by_the_model_in_the_request_body(routed):
    units = routed["body"]
    assert units[0] in {1, 2, 3}
    assert units[1] == 4
    assert routed["charset"]["document"]["unit"] == 4


def test_long_prompts_pass_whole_and_larger_bodies_are_refused(routed):
    assert routed["large"]["status"] == 200
    assert routed["large"]["document"]["bytes"] > 8 * 2**20
    assert error(routed["too_large"])[:2] == (413, "request_too_large")


def test_a_path_prefix_selects_one_of_several_deployments_of_the_same_model(routed):
    answer = routed["path"]
    assert (answer["document"]["unit"], answer["document"]["path"]) == (3, "/v1/chat/completions")


def test_a_host_name_selects_one_of_several_deployments_of_the_same_model(routed):
    assert set(routed["host"]) <= {1, 2}


def test_the_front_door_has_a_port_for_each_model_for_pods_of_the_cluster(routed):
    assert routed["ports"] == [3, 4]


def test_the_error_for_an_unknown_model_lists_the_known_ones(routed):
    for case in ("unknown", "number", "newline"):
        status, code, words = error(routed[case])
        assert (status, code) == (404, "model_not_found")
        assert "meta/llama, openai/gpt-oss-120b" in words


def test_a_request_body_without_a_model_is_refused(routed):
    assert {error(answer)[0] for answer in routed["none"]} == {400}


def test_the_front_door_serves_only_the_api_paths_of_vllm(routed):
    assert error(routed["elsewhere"])[:2] == (404, "not_found")


def test_the_api_list_of_models_has_all_models_or_those_of_the_requested_host(routed):
    names = [entry["id"] for entry in routed["models"]["document"]["data"]]
    assert names == ["openai/gpt-oss-120b", "meta/llama"]
    assert [entry["id"] for entry in routed["models_of_host"]["document"]["data"]] == ["openai/gpt-oss-120b"]


def test_a_client_cannot_set_destination_client_name_or_request_id(routed):
    answer = routed["headers"]
    assert "evil" not in json.dumps(answer)
    assert answer["headers"]["x-request-id"] == answer["document"]["headers"]["X-Request-ID"] != "chosen"


def test_the_front_door_streams_each_generated_token_as_it_arrives(routed):
    assert routed["streams"] == {"begun": "token", "end": " end"}


def test_the_access_log_does_not_contain_prompts(routed):
    assert "secret prompt" not in routed["log"]
    assert {"openai/gpt-oss-120b", "meta/llama"} < {line["model"] for line in lines(routed["log"])}


def test_an_idle_stream_is_kept_alive_within_the_load_balancers_timeout(routed):
    assert routed["probe_s"] is not None
    assert 0 < routed["probe_s"] <= bounds().keepalive_s + 1 < bounds().load_balancer_idle_s / 2


def test_changing_the_traffic_weights_of_upstreams_fails_no_request(seen):
    assert set(seen["moved"]["statuses"]) == {"200"}


def test_a_stream_continues_at_an_upstream_whose_traffic_weight_became_zero(seen):
    assert seen["moved"]["stream"] == "token end"


def test_upstreams_receive_requests_in_proportion_to_their_traffic_weights(seen):
    for shares in seen["moved"]["shares"]:
        assert shares["1"] + shares["2"] == 200
        assert 10 <= shares["2"] <= 30


def test_no_request_is_answered_without_a_known_api_key(guarded):
    for answer in (*guarded["nobody"], guarded["wrong"]):
        assert error(answer)[:2] == (401, "invalid_api_key")


def test_an_api_key_is_accepted_only_as_a_bearer_token(guarded):
    assert guarded["forms"] == [200, 401, 401, 401, 401]


def test_refused_keys_of_an_address_are_rate_limited_and_valid_keys_are_not(guarded):
    status, code, words = error(guarded["guesses"])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert "keys of this address were refused" in words
    assert guarded["known_beside_guesses"] == 200


@pytest.mark.parametrize("kind", ["length", "chunks"])
def test_unfinished_requests_of_one_client_use_at_most_the_clients_share_of_memory(routed, kind: str):
    told = routed["unfinished"]["told"][kind]
    assert told["429"] >= 10
    assert told["nothing"] >= 3  # three at each thread; those of the kind before have gone


@pytest.mark.parametrize(("kind", "status"), [("longer", "413"), ("chunks of GET", "413"), ("length of GET", "400")])
def test_a_request_that_will_be_refused_anyway_is_refused_before_its_body_is_read(routed, kind: str, status: str):
    assert routed["unfinished"]["told"][kind] == {status: 20}


def test_each_further_client_gets_at_most_half_of_the_remaining_request_buffer(routed):
    told = routed["unfinished"]["told"]
    assert 1 <= told["second client"]["nothing"] <= 2  # one at each thread
    assert 1 <= told["third client"]["nothing"] <= 2


def test_unfinished_requests_of_some_clients_cause_no_failed_request_of_another(routed):
    assert set(routed["unfinished"]["others"]) == {200}


def test_a_long_invalid_client_name_is_shortened_in_answers_and_logs(routed):
    answers = [routed["long_name"], routed["long_model"], *routed["names"].values()]
    assert max(len(json.dumps(answer["document"])) for answer in answers) < 1024
    assert max(map(len, routed["log"].splitlines())) < 2048
    assert [answer["status"] for answer in answers] == [400, 404, 400, 400, 400]


def test_the_error_for_a_model_name_with_quotes_is_valid_json(routed):
    params = [answer["document"]["error"]["param"] for answer in routed["names"].values()]
    assert params[1:] == ["kv_????", "kv_????"]


def test_a_client_can_list_and_use_only_its_permitted_models(seen):
    entitled = seen["entitled"]
    assert entitled["allowed"] == [200, 200]
    for answer in entitled["denied"]:
        status, code, words = error(answer)
        assert (status, code) == (404, "model_not_found" if code != "not_found" else code)
        assert words.endswith("Its models are: meta/llama.")
    assert entitled["lists"] == [["meta/llama"], []]
    assert len(entitled["others"]) == 2


def test_a_clients_token_limit_counts_the_tokens_that_a_request_may_generate(seen):
    entitled = seen["entitled"]
    assert [error(answer)[:2] for answer in entitled["large"]] == [(429, "rate_limit_exceeded")] * 8
    assert entitled["small"] == [200] * 6 + [429]  # of 3,500; 500 each and those of their bodies


def test_the_token_limit_counts_the_models_longest_sequence_if_max_tokens_is_missing(seen):
    answers = seen["entitled"]["unbounded"]
    assert [error(answer)[:2] for answer in answers["long"]] == [(429, "rate_limit_exceeded")] * 13
    assert [answer["status"] for answer in answers["short"]] == [200] * 7


def test_concurrent_requests_of_a_client_are_counted_until_the_client_disconnects(seen):
    status, code, words = error(seen["entitled"]["third"])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert "under way" in words
    assert seen["entitled"]["elsewhere"] == 200


def test_a_clients_concurrency_limit_counts_requests_by_body_path_and_host_together(seen):
    answers = seen["entitled"]["third_elsewhere"]
    assert [error(answer)[:2] for answer in answers] == [(429, "rate_limit_exceeded")] * 3


def test_under_a_concurrency_limit_path_and_host_still_select_the_upstream(seen):
    units = seen["entitled"]["own_units"]
    assert set(units[::3]) == {3}
    assert {*units[1::3], *units[2::3]} <= {1, 2}
    assert seen["entitled"]["unit_without_weight"] == 3


def test_servers_receive_the_clients_name_and_not_its_key(guarded):
    headers = guarded["alice"]["document"]["headers"]
    assert headers["x-llmd-oke-client"] == "alice"
    assert "Qm7xT2vKd9RwZb4H" not in json.dumps(headers)


def test_rate_limits_of_clients_are_independent_of_each_other(guarded):
    assert [answer["status"] for answer in guarded["bob"]] == [200, 200, 200, 429, 429]
    assert error(guarded["bob"][-1])[1] == "rate_limit_exceeded"
    assert guarded["bob"][-1]["headers"]["retry-after"] == "60"
    assert guarded["alice_after"] == 200


def test_api_keys_can_be_added_and_removed_without_a_restart(guarded):
    assert guarded["bob_after"] == 401


def test_a_renewed_certificate_is_used_without_a_restart(guarded):
    assert guarded["kept"] == 200  # by a connection of the old one, which goes on


def test_the_access_log_names_clients_but_not_their_keys(guarded):
    assert {"alice", "bob"} <= {line["client"] for line in lines(guarded["log"])}
    assert "Qm7xT2vKd9RwZb4H" not in guarded["log"]


def test_a_token_of_the_identity_provider_is_accepted(seen):
    answer = seen["signed"]["good"]
    assert answer["document"]["headers"]["x-llmd-oke-client"] == "team"
    assert "Authorization" not in answer["document"]["headers"]


def test_rotated_keys_of_the_identity_provider_are_used_without_an_update(seen):
    assert seen["fetched"] == {"second_before": False, "first_after": False, "provider_gone": True}


@pytest.mark.parametrize(
    ("case", "status", "words"),
    [
        ("expired", 401, "Jwt is expired"),
        ("audience", 403, "Audiences in Jwt are not allowed"),
        ("issuer", 401, "Jwt issuer is not configured"),
        ("forged", 401, "Jwt verification fails"),
        ("missing", 401, "Jwt is missing"),
    ],
)
def test_invalid_identity_tokens_are_refused_with_status_and_reason(seen, case: str, status: int, words: str):
    answered, _, message = error(seen["signed"][case])
    assert answered == status
    assert words in message


def test_a_refused_identity_token_is_rate_limited_and_others_of_its_address_are_not(seen):
    status, code, words = error(seen["signed"]["repeated"])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert "refused too often" in words
    assert (seen["signed"]["known_beside_repeated"], seen["signed"]["fresh_beside_repeated"]) == (200, 200)


def test_guessed_tokens_are_rate_limited_while_valid_ones_pass(seen):
    told, beside = seen["signed"]["guessed"]["told"], seen["signed"]["guessed"]["beside"]
    assert any("Jwt verification fails" in words for words in told)
    assert any("Too many tokens were refused in this second" in words for words in told)
    assert set(beside) == {200}


@pytest.mark.parametrize("client", ["other", "nameless"])
def test_clients_without_own_limits_may_use_only_models_permitted_to_all_clients(seen, client: str):
    allowed, denied, by_path, models = seen["unlisted"][client]
    assert allowed["status"] == 200
    assert [error(answer)[0] for answer in (denied, by_path)] == [404, 404]
    assert [entry["id"] for entry in models["document"]["data"]] == ["meta/llama"]
    assert seen["unlisted"]["team"] == [200, 200]


def test_a_client_without_limits_of_its_own_gets_the_common_concurrency_limit(seen):
    unlisted = seen["unlisted"]
    for begun in (unlisted["other_at_a_time"], unlisted["again_at_a_time"]):
        assert 2 <= begun["200"] <= 4  # two at each thread that it has connections to
        assert begun["200"] + begun["429"] == 9
    status, code, words = error(unlisted["crowded"])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert "under way" in words
    assert unlisted["nameless_beside"] == 200


def test_a_clients_concurrency_limit_holds_over_all_threads_of_an_envoy(seen):
    assert seen["unlisted"]["team_at_a_time"] == {"200": 6, "429": 3}


def test_each_client_has_its_own_cache_salt_that_its_name_does_not_reveal(seen):
    salts = seen["salted"]
    assert [len(set(salts[name])) for name in ("alice", "bob")] == [1, 1]
    assert salts["alice"][0] != salts["bob"][0]
    expected = {name: hashlib.sha256(f"{CACHE_SECRET}:{name}".encode()).hexdigest() for name in ("alice", "bob")}
    assert {name: salts[name][0] for name in expected} == expected
    assert salts["named"]["document"]["salt"] == salts["alice"][0]


def test_a_client_cannot_use_another_clients_cache_salt(seen):
    own = seen["salted"]["own"]
    assert error(own)[:2] == (400, "field_not_allowed")
    assert own["document"]["error"]["param"] == "cache_salt"


def test_api_paths_without_a_cache_salt_parameter_are_refused_if_clients_have_salts(seen):
    assert error(seen["salted"]["unsalted"])[:2] == (404, "not_found")
    assert seen["salted"]["pod"]["document"]["salt"] is None
