"""The example project with two models behind a Gateway that somebody else made."""

from llmd_oke.cli.main import app
from llmd_oke.testing import render
from render_support import PROJECT
from typer.testing import CliRunner

EXAMPLE = PROJECT / "examples" / "behind-a-gateway"


def test_the_example_behind_a_gateway_passes_the_check_command():
    checked = CliRunner().invoke(app, ["check", "--stack", "rehearsal", "--project", str(EXAMPLE)])
    assert checked.exit_code == 0, checked.output


def test_the_example_attaches_routes_by_host_to_the_existing_gateway():
    made = render("rehearsal", project=EXAMPLE)
    for name, host in (("gpt-oss-120b", "gpt.example.com"), ("llama", "llama.example.com")):
        route = made.kubernetes("HTTPRoute", name)["spec"]
        assert route["hostnames"] == [host]
        (parent,) = route["parentRefs"]
        assert (parent["name"], parent["namespace"]) == ("shared", "gateways")
