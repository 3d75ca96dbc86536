"""`llmd-oke tunnel`: a private API endpoint, reachable from this machine through the OCI Bastion service.

`up` and `destroy` have a tunnel of their own with `--tunnel`.
"""

import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke import config
from llmd_oke.access import forwarding
from llmd_oke.access import tunnel as tunnels
from llmd_oke.access.forwarding import Find, Tunnel
from llmd_oke.access.oci_client import OciClient
from llmd_oke.access.places import host_and_port, region_of
from llmd_oke.access.reachability import is_reachable
from llmd_oke.access.sign_in import SignIn
from llmd_oke.access.tunnel import NotYet, Target, Wanted
from llmd_oke.cli import console, options, preflight, times, token
from llmd_oke.config import CreateCluster, ExistingCluster, StackConfig
from llmd_oke.errors import KitError
from llmd_oke.planning import plan_stack_file
from llmd_oke.progress import Progress

API_SERVER = "llmd-oke:apiServer"
PORT = 6443
SESSION_S = float(tunnels.LONGEST_SESSION_S)
PATIENCE_S = 3600.0
OPENING_S = 300.0
SessionLife = Annotated[
    float,
    times.option(
        about="Life of a session, which is renewed before it ends", least_s=1800, most_s=SESSION_S, default_s=SESSION_S
    ),
]
Patience = Annotated[
    float, times.option("--wait", about="How long to wait for cluster and bastion", least_s=0, default_s=PATIENCE_S)
]
OfCommand = Annotated[
    bool,
    typer.Option(
        "--tunnel",
        help="Reach the private API endpoint through the bastion, as soon as both are there, until this ends.",
    ),
]


def tunnel(
    stack: options.Stack,
    project: options.Project = options.HERE,
    cluster_id: Annotated[str | None, typer.Option(help="OCID of the cluster; the stack's if left out.")] = None,
    bastion_id: Annotated[str | None, typer.Option(help="OCID of the bastion; that of the cluster's VCN.")] = None,
    port: Annotated[int, typer.Option(help="Local port.", min=1, max=65535)] = PORT,
    session: SessionLife = SESSION_S,
    wait: Patience = PATIENCE_S,
    auth: token.AuthOption = None,
    profile: token.Profile = None,
    region: preflight.Region = None,
) -> None:
    """Make the cluster's private API endpoint answer at https://127.0.0.1:PORT until interrupted.

    Waits for a cluster and a bastion that are still to be made. Sessions and their key are this command's own.
    """
    _require_ssh()
    home = _home(project, stack)
    wanted = replace(wanted_of(home.config, cluster_id, bastion_id), session_s=round(session))
    who = token.sign_in_of(home.settings, auth, profile)
    console.progress().step("looking for the cluster and its bastion; Ctrl-C ends this")
    Tunnel(_finder(wanted, region_of(home.config, region), who), port, console.progress()).keep(wait)


@contextmanager
def during(project: Path, stack: str, progress: Progress) -> Generator[None]:
    """A tunnel where the stack's objects look for the API server, open before the block where the cluster is there
    already, and otherwise as soon as it is.

    Raises:
        KitError: the stack's objects don't go through a tunnel, or it can't be opened.
    """
    _require_ssh()
    home = _home(project, stack)
    find = _finder(wanted_of(home.config), region_of(home.config), token.sign_in_of(home.settings))
    kept = Tunnel(find, home.port, _Steps(progress))
    there = _is_there(find)
    with kept.beside():
        if there:
            kept.wait_until_open(OPENING_S)
        else:
            progress.step("the tunnel opens as soon as the cluster and its bastion are there")
        yield


def remind(project: Path, stack: str, progress: Progress) -> None:
    """Says that the stack's objects go through a tunnel, where none is open."""
    port = _local_port(config.settings(project, stack).get(API_SERVER))
    if port and not is_reachable(forwarding.HERE, port):
        progress.step(
            f"nothing listens at {forwarding.HERE}:{port} ({API_SERVER}) yet: use --tunnel, or `llmd-oke tunnel`"
        )


def _local_port(address: str | None) -> int | None:
    """The port of an address on this machine; None for any other.

    Raises:
        KitError: it is no address.
    """
    host, port = host_and_port(address) if address else ("", None)
    return port if host in {forwarding.HERE, "localhost"} else None


@dataclass(frozen=True)
class _Home:
    """The stack that has the cluster: this one, or the one that made it."""

    stack: str
    config: StackConfig
    settings: Mapping[str, str]

    @property
    def port(self) -> int:
        """Where the stack's objects look for the API server.

        Raises:
            KitError: not on this machine.
        """
        address = self.settings.get(API_SERVER)
        if address is None and isinstance(self.config.cluster, ExistingCluster):
            return PORT  # the user's kubeconfig has the address
        if port := _local_port(address):
            return port
        raise KitError(
            "The stack's objects don't go through a tunnel: "
            + (f"{API_SERVER} is {address}." if address else f"{API_SERVER} is not set."),
            f"Set it once: pulumi config set {API_SERVER} https://{forwarding.HERE}:{PORT} --stack {self.stack}",
        )


class _Steps:
    """Tells steps only: details would break into what the engine shows."""

    def __init__(self, progress: Progress) -> None:
        self.step = progress.step

    def detail(self, text: str) -> None:
        """Drop it."""


def _home(project: Path, stack: str) -> _Home:
    found = plan_stack_file(project, stack).config
    if found.cluster is None and found.cluster_stack:
        stack, found = found.cluster_stack, plan_stack_file(project, found.cluster_stack).config
    return _Home(stack, found, config.settings(project, stack))


def wanted_of(stack: StackConfig, cluster_id: str | None = None, bastion_id: str | None = None) -> Wanted:
    """What a tunnel to a stack's cluster leads to and through; what is given takes the place of what the stack has.

    Raises:
        KitError: the stack does not say which cluster it is.
    """
    cluster = stack.cluster
    if isinstance(cluster, CreateCluster):
        network = cluster.network
        return Wanted(
            cluster_id=cluster_id or cluster.cluster_id,
            cluster_name=cluster.name,
            compartment_id=cluster.compartment_id,
            bastion_id=bastion_id or network.bastion_service.ocid,
            network_compartment_id=network.compartment_id,
        )
    named = cluster.identifier if isinstance(cluster, ExistingCluster) else ""
    if cluster_id or named.startswith("ocid1.cluster."):
        return Wanted(cluster_id=cluster_id or named, bastion_id=bastion_id)
    raise KitError("The stack file has no OCID of its cluster.", "Give --cluster-id, or cluster.identifier an OCID.")


def _finder(wanted: Wanted, region: str, who: SignIn) -> Find:
    """Signs in anew each time: tunnels outlive some tokens."""

    def find() -> tuple[OciClient, Target]:
        client = token.client_of(who, region)
        return client, tunnels.target(client, wanted)

    return find


def _is_there(find: Find) -> bool:
    try:
        find()
    except NotYet:
        return False
    return True


def _require_ssh() -> None:
    if shutil.which("ssh") is None:
        raise KitError("`ssh` is not on PATH.", "Install OpenSSH's client.")
