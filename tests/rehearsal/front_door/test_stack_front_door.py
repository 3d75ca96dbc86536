import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.serving.envoy_bounds import bounds
from llmd_rehearsal import namespaces
from llmd_rehearsal.programs import locate
from stack_front_door_clients import CACHE_SECRET

pytestmark = pytest.mark.rehearsal


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    envoy = locate("envoy")
    if envoy is None:
        pytest.skip("there is no `envoy` in LLMD_OKE_PROGRAMS, in the cache or on PATH")
    log = tmp_path_factory.mktemp("stack-front-door") / "envoy.log"
    script = Path(__file__).with_name("stack_front_door_clients.py")
    argv = namespaces.create_command([sys.executable, str(script), str(envoy.path)], user_namespace=os.geteuid() != 0)
    with log.open("w") as errors:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=240, check=False)
    if "unshare" in log.read_text():
        pytest.skip(f"no namespaces on this machine: {log.read_text().strip()}")
    assert done.returncode == 0, log.read_text()
    return json.loads(done.stdout)


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


def test_the_body_says_the_model(routed):
    units = routed["body"]
    assert units[0] in {1, 2, 3}
    assert units[1] == 4
    assert routed["charset"]["document"]["unit"] == 4


def test_long_prompts_pass_whole_and_larger_ones_are_refused(routed):
    assert routed["large"]["status"] == 200
    assert routed["large"]["document"]["bytes"] > 8 * 2**20
    assert error(routed["too_large"])[:2] == (413, "request_too_large")


def test_a_path_leads_to_one_entry_of_a_model(routed):
    answer = routed["path"]
    assert (answer["document"]["unit"], answer["document"]["path"]) == (3, "/v1/chat/completions")


def test_a_host_leads_to_one_entry_of_a_model(routed):
    assert set(routed["host"]) <= {1, 2}


def test_each_model_has_a_port_for_pods_of_the_cluster(routed):
    assert routed["ports"] == [3, 4]


def test_an_unknown_model_is_told_which_ones_there_are(routed):
    for case in ("unknown", "number", "newline"):
        status, code, words = error(routed[case])
        assert (status, code) == (404, "model_not_found")
        assert "meta/llama, openai/gpt-oss-120b" in words


def test_a_body_without_a_model_is_refused(routed):
    assert {error(answer)[0] for answer in routed["none"]} == {400}


def test_only_the_api_can_be_reached(routed):
    assert error(routed["elsewhere"])[:2] == (404, "not_found")


def test_all_models_are_listed_and_those_of_a_host(routed):
    names = [entry["id"] for entry in routed["models"]["document"]["data"]]
    assert names == ["openai/gpt-oss-120b", "meta/llama"]
    assert [entry["id"] for entry in routed["models_of_host"]["document"]["data"]] == ["openai/gpt-oss-120b"]


def test_a_client_sets_no_destination_no_name_and_no_request_id(routed):
    answer = routed["headers"]
    assert "evil" not in json.dumps(answer)
    assert answer["headers"]["x-request-id"] == answer["document"]["headers"]["X-Request-ID"] != "chosen"


def test_tokens_pass_as_they_come(routed):
    assert routed["streams"] == {"begun": "token", "end": " end"}


def test_the_access_log_has_no_prompt(routed):
    assert "secret prompt" not in routed["log"]
    assert {"openai/gpt-oss-120b", "meta/llama"} < {line["model"] for line in lines(routed["log"])}


def test_a_silent_connection_is_kept_alive_within_the_load_balancers_time(routed):
    assert routed["probe_s"] is not None
    assert 0 < routed["probe_s"] <= bounds().keepalive_s + 1 < bounds().load_balancer_idle_s / 2


def test_weights_move_without_a_failed_request(seen):
    assert set(seen["moved"]["statuses"]) == {"200"}


def test_a_stream_goes_on_at_a_unit_that_gets_no_more_requests(seen):
    assert seen["moved"]["stream"] == "token end"


def test_units_get_the_share_of_their_weight(seen):
    for shares in seen["moved"]["shares"]:
        assert shares["1"] + shares["2"] == 200
        assert 10 <= shares["2"] <= 30


def test_nothing_is_answered_without_a_known_key(guarded):
    for answer in (*guarded["nobody"], guarded["wrong"]):
        assert error(answer)[:2] == (401, "invalid_api_key")


def test_a_key_is_taken_as_a_bearers_alone(guarded):
    assert guarded["forms"] == [200, 401, 401, 401, 401]


def test_refused_keys_of_an_address_are_limited_and_known_ones_are_not(guarded):
    status, code, words = error(guarded["guesses"])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert "keys of this address were refused" in words
    assert guarded["known_beside_guesses"] == 200


@pytest.mark.parametrize("kind", ["length", "chunks"])
def test_unfinished_requests_of_one_client_take_no_more_than_its_share(routed, kind: str):
    told = routed["unfinished"]["told"][kind]
    assert told["429"] >= 10
    assert told["nothing"] >= 3  # three at each thread; those of the kind before have gone


@pytest.mark.parametrize(("kind", "status"), [("longer", "413"), ("chunks of GET", "413"), ("length of GET", "400")])
def test_a_request_that_can_only_be_refused_is_refused_before_its_body(routed, kind: str, status: str):
    assert routed["unfinished"]["told"][kind] == {status: 20}


def test_each_further_client_takes_half_of_what_is_left_at_most(routed):
    told = routed["unfinished"]["told"]
    assert 1 <= told["second client"]["nothing"] <= 2  # one at each thread
    assert 1 <= told["third client"]["nothing"] <= 2


def test_a_client_loses_nothing_beside_unfinished_requests_of_others(routed):
    assert set(routed["unfinished"]["others"]) == {200}


def test_a_refused_name_of_a_client_is_short_in_answers_and_logs(routed):
    answers = [routed["long_name"], routed["long_model"], *routed["names"].values()]
    assert max(len(json.dumps(answer["document"])) for answer in answers) < 1024
    assert max(map(len, routed["log"].splitlines())) < 2048
    assert [answer["status"] for answer in answers] == [400, 404, 400, 400, 400]


def test_a_name_with_quotes_is_refused_in_json(routed):
    params = [answer["document"]["error"]["param"] for answer in routed["names"].values()]
    assert params[1:] == ["kv_????", "kv_????"]


def test_a_client_uses_and_sees_the_models_alone_that_it_may_use(seen):
    entitled = seen["entitled"]
    assert entitled["allowed"] == [200, 200]
    for answer in entitled["denied"]:
        status, code, words = error(answer)
        assert (status, code) == (404, "model_not_found" if code != "not_found" else code)
        assert words.endswith("Its models are: meta/llama.")
    assert entitled["lists"] == [["meta/llama"], []]
    assert len(entitled["others"]) == 2


def test_tokens_of_a_minute_are_those_that_a_request_may_take(seen):
    entitled = seen["entitled"]
    assert [error(answer)[:2] for answer in entitled["large"]] == [(429, "rate_limit_exceeded")] * 8
    assert entitled["small"] == [200] * 6 + [429]  # of 3,500; 500 each and those of their bodies


def test_an_answer_without_a_bound_counts_as_the_longest_sequence_of_its_model(seen):
    answers = seen["entitled"]["unbounded"]
    assert [error(answer)[:2] for answer in answers["long"]] == [(429, "rate_limit_exceeded")] * 13
    assert [answer["status"] for answer in answers["short"]] == [200] * 7


def test_requests_of_a_client_at_a_time_are_counted_until_it_has_gone(seen):
    status, code, words = error(seen["entitled"]["third"])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert "under way" in words
    assert seen["entitled"]["elsewhere"] == 200


def test_requests_by_body_path_and_host_are_counted_together(seen):
    answers = seen["entitled"]["third_elsewhere"]
    assert [error(answer)[:2] for answer in answers] == [(429, "rate_limit_exceeded")] * 3


def test_counted_requests_by_path_or_host_go_to_the_entrys_own_units(seen):
    units = seen["entitled"]["own_units"]
    assert set(units[::3]) == {3}
    assert {*units[1::3], *units[2::3]} <= {1, 2}
    assert seen["entitled"]["unit_without_weight"] == 3


def test_servers_learn_the_clients_name_and_not_its_key(guarded):
    headers = guarded["alice"]["document"]["headers"]
    assert headers["x-llmd-oke-client"] == "alice"
    assert "Qm7xT2vKd9RwZb4H" not in json.dumps(headers)


def test_the_limit_of_one_client_is_not_anothers(guarded):
    assert [answer["status"] for answer in guarded["bob"]] == [200, 200, 200, 429, 429]
    assert error(guarded["bob"][-1])[1] == "rate_limit_exceeded"
    assert guarded["bob"][-1]["headers"]["retry-after"] == "60"
    assert guarded["alice_after"] == 200


def test_keys_come_and_go_without_a_restart(guarded):
    assert guarded["bob_after"] == 401


def test_a_renewed_certificate_is_used_without_a_restart(guarded):
    assert guarded["kept"] == 200  # by a connection of the old one, which goes on


def test_the_access_log_has_clients_and_no_keys(guarded):
    assert {"alice", "bob"} <= {line["client"] for line in lines(guarded["log"])}
    assert "Qm7xT2vKd9RwZb4H" not in guarded["log"]


def test_a_token_of_the_provider_is_accepted(seen):
    answer = seen["signed"]["good"]
    assert answer["document"]["headers"]["x-llmd-oke-client"] == "team"
    assert "Authorization" not in answer["document"]["headers"]


def test_a_providers_other_keys_are_taken_without_an_update_and_the_old_ones_go(seen):
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
def test_other_tokens_are_refused_in_words(seen, case: str, status: int, words: str):
    answered, _, message = error(seen["signed"][case])
    assert answered == status
    assert words in message


def test_a_refused_token_is_limited_and_others_of_its_address_are_not(seen):
    status, code, words = error(seen["signed"]["repeated"])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert "refused too often" in words
    assert (seen["signed"]["known_beside_repeated"], seen["signed"]["fresh_beside_repeated"]) == (200, 200)


def test_tokens_none_of_which_comes_twice_are_limited_and_those_that_passed_are_not(seen):
    told, beside = seen["signed"]["guessed"]["told"], seen["signed"]["guessed"]["beside"]
    assert any("Jwt verification fails" in words for words in told)
    assert any("Too many tokens were refused in this second" in words for words in told)
    assert set(beside) == {200}


@pytest.mark.parametrize("client", ["other", "nameless"])
def test_a_client_of_whom_nothing_is_said_uses_and_sees_the_models_of_all(seen, client: str):
    allowed, denied, by_path, models = seen["unlisted"][client]
    assert allowed["status"] == 200
    assert [error(answer)[0] for answer in (denied, by_path)] == [404, 404]
    assert [entry["id"] for entry in models["document"]["data"]] == ["meta/llama"]
    assert seen["unlisted"]["team"] == [200, 200]


def test_a_client_of_whom_nothing_is_said_has_so_many_requests_at_a_time(seen):
    unlisted = seen["unlisted"]
    for begun in (unlisted["other_at_a_time"], unlisted["again_at_a_time"]):
        assert 2 <= begun["200"] <= 4  # two at each thread that it has connections to
        assert begun["200"] + begun["429"] == 9
    status, code, words = error(unlisted["crowded"])
    assert (status, code) == (429, "rate_limit_exceeded")
    assert "under way" in words
    assert unlisted["nameless_beside"] == 200


def test_a_number_of_a_clients_own_is_counted_by_the_envoy_as_a_whole(seen):
    assert seen["unlisted"]["team_at_a_time"] == {"200": 6, "429": 3}


def test_each_client_has_a_cache_salt_of_its_own_that_its_name_does_not_tell(seen):
    salts = seen["salted"]
    assert [len(set(salts[name])) for name in ("alice", "bob")] == [1, 1]
    assert salts["alice"][0] != salts["bob"][0]
    expected = {name: hashlib.sha256(f"{CACHE_SECRET}:{name}".encode()).hexdigest() for name in ("alice", "bob")}
    assert {name: salts[name][0] for name in expected} == expected
    assert salts["named"]["document"]["salt"] == salts["alice"][0]


def test_a_client_takes_no_other_clients_cache_salt(seen):
    status, code, _ = error(seen["salted"]["own"])
    assert (status, code, seen["salted"]["own"]["document"]["error"]["param"]) == (
        400,
        "field_not_allowed",
        "cache_salt",
    )


def test_a_path_without_cache_salt_is_refused_where_clients_have_one(seen):
    assert error(seen["salted"]["unsalted"])[:2] == (404, "not_found")
    assert seen["salted"]["pod"]["document"]["salt"] is None
