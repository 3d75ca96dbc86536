"""Operations of the kit on a rehearsed stack, by the same code as on a real one: nodes replaced, losses forgotten."""

import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import lightkube
from cryptography.hazmat.primitives.asymmetric import rsa
from lightkube.config.kubeconfig import KubeConfig
from llmd_base.progress import Progress
from llmd_oke.access.oci_client import HOSTS, SignedOciClient
from llmd_oke.access.signing import Signer
from llmd_oke.config import CreateCluster, load
from llmd_oke.operations.draining import Drain
from llmd_oke.operations.nodes import ReplaceOptions, replace_nodes
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from llmd_oke.operations.pulumi_cli import run as run_cli
from llmd_oke.operations.rebuild import find_losses, forget_losses
from pulumi import automation
from pulumi.automation import events

from llmd_rehearsal.cluster_plan import OCI_REST_PORT
from llmd_rehearsal.engine_events import StepRecorder

POLL_S = 0.2
"""Longest pause in wall seconds between two requests to the stand-in for OCI, which finishes work sooner than OCI."""


def oci_client(rest_url: str) -> SignedOciClient:
    """Return a client of OCI's REST API that sends its requests to the stand-in for OCI at this base URL."""
    versions = {service: urlsplit(host).path for service, host in HOSTS.items()}
    hosts = {service: rest_url + version for service, version in versions.items()}
    return SignedOciClient(_signer(), "", httpx2.Client(trust_env=False), hosts=hosts)


@cache
def _signer() -> Signer:
    return Signer("rehearsal", rsa.generate_private_key(65537, 2048))


def cli_of(stack: automation.Stack, project: Path, hear: Callable[[events.EngineEvent], Any]) -> PulumiCli:
    """Return a Pulumi CLI for the kit's own operations; its `preview` and `up` run the stack's program in this process,
    and `hear` receives the engine's events.
    """

    def run(argv: Sequence[str], capture: bool) -> CommandResult:
        arguments = argv[argv.index("pulumi") + 1 :]
        if arguments[0] == "preview":
            steps = StepRecorder(hear)
            stack.preview(on_event=steps.hear, color="never")
            return CommandResult(0, json.dumps({"steps": steps.recorded}))
        if arguments[0] == "up":
            urns = [urn for option, urn in pairwise(arguments) if option == "--replace"]
            stack.up(on_event=hear, replace=urns or None, suppress_outputs=True, color="never")
            return CommandResult(0)
        return run_cli(argv, capture=capture, aside=True)

    return PulumiCli(project, stack.name, "pulumi", run)


def replace_rehearsed_nodes(
    stack: automation.Stack,
    project: Path,
    hear: Callable[[events.EngineEvent], Any],
    progress: Progress,
    names: Sequence[str],
    at_once: int,
    drain_limit_s: float | None,
    *,
    force: bool,
) -> None:
    """Replace nodes of a rehearsed stack by new instances; drain each node first, unless `drain_limit_s` is None. Runs
    inside the local cluster.

    Raises:
        KitError: the reasons are those of a real stack (`replace_nodes`).
    """
    drain = None
    if drain_limit_s is not None:
        client = lightkube.Client(config=KubeConfig.from_env().get(), trust_env=False)
        drain = Drain(client, progress, drain_limit_s, force, _pause)
        drain.require_cluster()
    options = ReplaceOptions(at_once, drain, lambda: oci_client(f"http://127.0.0.1:{OCI_REST_PORT}"), _pause)
    replace_nodes(cli_of(stack, project, hear), progress, lambda _: True, names, options, yes=True)


def forget_rehearsed_losses(
    stack: automation.Stack, project: Path, hear: Callable[[events.EngineEvent], Any], progress: Progress
) -> list[str]:
    """Remove from a rehearsed stack's Pulumi state the resources that the stand-in for OCI no longer has.

    Returns a sentence on each removed resource and on what was kept; empty if no resource is gone. Runs inside the
    local cluster.

    Raises:
        KitError: the reasons are those of a real stack (`find_losses`, `forget_losses`).
    """
    cluster = load(project, stack.name).cluster
    if not isinstance(cluster, CreateCluster):
        return []
    cli = cli_of(stack, project, hear)
    losses = find_losses(cli, lambda: oci_client(f"http://127.0.0.1:{OCI_REST_PORT}"), cluster.compartment_id, progress)
    if losses:
        forget_losses(cli, losses, progress)
    return list(losses.lines()) if losses else []


def _pause(seconds: float) -> None:
    time.sleep(min(seconds, POLL_S))
