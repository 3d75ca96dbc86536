"""Stack files that `llmd-oke init` writes from options are rehearsed as they stand."""

import pytest
from user_project import Project

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

SMALL = ("--topology", "2p-tp1-1d-tp2")


@pytest.mark.parametrize(
    ("stack", "where"),
    [
        ("here", ("--target", "rehearsal")),
        ("joined", ("--cluster-id", "ocid1.cluster.oc1.iad.example")),
        ("made", ("--region", "us-ashburn-1", "--compartment", "ocid1.compartment.oc1..example")),
    ],
)
def test_a_stack_file_that_init_writes_deploys_and_serves(project: Project, stack: str, where: tuple[str, ...]) -> None:
    written = project.command("init", "--stack", stack, *where, *SMALL)
    assert written.status == 0, written.errors
    rehearsed = project.rehearse(stack)
    assert rehearsed.status == 0, rehearsed.errors
    assert rehearsed.document["smoke"]
    status = project.command("status", "--rehearse", "--stack", stack)
    project.command("rehearse", "down", "--stack", stack)
    assert status.status == 0, status.output
