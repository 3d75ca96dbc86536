import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal import namespaces
from llmd_rehearsal.programs import locate
from request_attacks import attacks

pytestmark = pytest.mark.rehearsal

DOORS = (
    "a model's front door",
    "a stack's front door",
    "a model's port of a stack's front door",
    "a Gateway's filters",
)
by_door = pytest.mark.parametrize("door", DOORS)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    envoy = locate("envoy")
    if envoy is None:
        pytest.skip("there is no `envoy` in LLMD_OKE_PROGRAMS, in the cache or on PATH")
    log = tmp_path_factory.mktemp("client-requests") / "envoy.log"
    script = Path(__file__).with_name("client_requests_sent.py")
    argv = namespaces.create_command([sys.executable, str(script), str(envoy.path)], user_namespace=os.geteuid() != 0)
    with log.open("w") as errors:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=300, check=False)
    if "unshare" in log.read_text():
        pytest.skip(f"no namespaces on this machine: {log.read_text().strip()}")
    assert done.returncode == 0, log.read_text()
    return json.loads(done.stdout)


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
