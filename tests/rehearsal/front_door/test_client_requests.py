import pytest
from request_attacks import attacks

pytestmark = pytest.mark.rehearsal

PROGRAM = "client_requests_sent.py"

DOORS = (
    "a model's front door",
    "a stack's front door",
    "a model's port of a stack's front door",
    "a Gateway's filters",
)
by_door = pytest.mark.parametrize("door", DOORS)


@by_door
def test_no_catalogued_attack_request_passes_a_server_a_field_that_steers_it(seen, door):
    found = {name: row["steered"] for name, row in seen[door]["table"].items() if row["steered"]}
    assert found == {}


@by_door
def test_every_catalogued_attack_request_gets_its_expected_http_status(seen, door):
    table = seen[door]["table"]
    other = {row.name: table[row.name] for row in attacks() if table[row.name]["status"] not in row.statuses}
    assert other == {}


@by_door
def test_the_error_of_a_refused_request_names_the_refused_field(seen, door):
    table = seen[door]["table"]
    named = {row.name: row.param for row in attacks() if row.param}
    assert {name: table[name]["param"] for name in named} == named


@by_door
def test_no_byte_of_a_refused_request_reaches_a_server(seen, door):
    begun = [row for row in seen[door]["table"].values() if row["status"] != 200 and row["reached"]]
    assert begun == []


@by_door
def test_http2_reaches_a_server_with_no_more_fields_than_http1(seen, door):
    assert {name: row["steered"] for name, row in seen[door]["http2"].items() if row["steered"]} == {}
    refused = {name for name, row in seen[door]["http2"].items() if row["status"] != 200}
    assert {"field", "field with trailers", "compressed", "path", "method", "websocket", "underscore"} <= refused
    assert seen[door]["http2"]["headers"]["status"] == 200


@by_door
def test_random_request_bodies_pass_no_field_that_steers_a_server(seen, door):
    fuzzed = seen[door]["fuzzed"]
    assert fuzzed["found"] == []
    assert min(fuzzed["passed"], fuzzed["refused"]) > 5
