import pytest

pytestmark = pytest.mark.rehearsal

PROGRAM = "front_door_clients.py"


def test_requests_on_one_client_connection_are_spread_evenly_over_four_upstreams(seen):
    assert sum(seen["shares"]) == 8000  # of 4,000 chosen at random one run in some hundreds is less even than that
    assert max(seen["shares"]) <= 1.15 * min(seen["shares"])


def test_a_client_cannot_choose_the_server_of_its_request(seen):
    assert "evil" not in seen["headers"]
    assert "authorization: kept" in seen["headers"]


def test_streams_go_to_the_least_loaded_upstream_and_tokens_pass_at_once(seen):
    streams = seen["streams"]
    assert max(streams["shares"]) <= 6  # of twelve, of which every unit would get three
    assert streams["begun"] == ["token"] * 12  # while the units still held the rest back
    assert streams["ended"] == [["token", ""]] * 12


def test_a_streamed_answer_that_breaks_is_not_retried_at_another_upstream(seen):
    assert seen["broken"] == {"chunks": ["token", None], "sent": 1}


def test_a_request_that_one_upstream_refuses_is_answered_by_a_busier_upstream(seen):
    assert seen["refused_503"] == seen["refused_429"] == {"200": 200}


def test_a_900_kib_prompt_that_one_upstream_refuses_is_answered_by_another(seen):
    assert set(seen["refused_prompts"]) == {200}


def test_an_upstream_of_the_front_door_that_disappears_loses_no_request(seen):
    assert seen["one_gone"] == {"200": 200}


def test_if_all_upstreams_refuse_a_request_the_client_receives_the_refusal(seen):
    assert seen["all_refuse"] == {"503": 5}


def test_a_terminating_envoy_closes_idle_connections_and_finishes_the_last_answer(seen):
    drained = seen["drained"]
    assert (drained["status"], drained["connection"]) == (200, "close")
    assert drained["waited"]
    assert drained["chunks"] == ["token", "token", ""]
    assert drained["hook"] == 200
