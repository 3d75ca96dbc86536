"""`llmd-oke tunnel`: a private API endpoint, reachable from this machine through the OCI Bastion service.

With `--tunnel`, `up` and `destroy` open a tunnel of their own.
"""

import shutil
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from llmd_base.errors import KitError
from llmd_base.progress import Progress

from llmd_oke import config
from llmd_oke.access import tunnel as tunnels
from llmd_oke.access.addresses import host_and_port, is_reachable, region_of
from llmd_oke.access.oci_client import OciClient
from llmd_oke.access.sign_in import SignIn
from llmd_oke.access.tunnel import Find, NotYet, Tunnel, TunnelOptions, TunnelTarget
from llmd_oke.cli import console, options, token
from llmd_oke.config import CreateCluster, ExistingCluster, StackConfig
from llmd_oke.planning import plan_stack_file

API_SERVER = "llmd-oke:apiServer"
PORT = 6443
SESSION_S = float(tunnels.LONGEST_SESSION_S)
PATIENCE_S = 3600.0
OPENING_S = 300.0
SessionLife = Annotated[
    float,
    options.time_option(
        about="Life of a session, which is renewed before it ends", least_s=1800, most_s=SESSION_S, default_s=SESSION_S
    ),
]
Patience = Annotated[
    float,
    options.time_option("--wait", about="How long to wait for cluster and bastion", least_s=0, default_s=PATIENCE_S),
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
    region: options.Region = None,
) -> None:
    """Forward https://127.0.0.1:PORT to the cluster's private API endpoint until interrupted.

    Waits for a cluster and a bastion that don't exist yet. The command creates its own sessions and SSH key.
    """
    _require_ssh()
    own = _cluster_stack(project, stack)
    tunnel_options = replace(tunnel_options_of(own.config, cluster_id, bastion_id), session_s=round(session))
    who = token.sign_in_of(own.settings, auth, profile)
    console.progress().step("looking for the cluster and its bastion; Ctrl-C ends this")
    Tunnel(_finder(tunnel_options, region_of(own.config, region), who), port, console.progress()).keep(wait)


@contextmanager
def during(project: Path, stack: str, progress: Progress) -> Generator[None]:
    """Keep a tunnel open during the block, at the local port that the stack's objects use for the API server. It opens
    before the block if the cluster exists already, otherwise as soon as the cluster exists.

    Raises:
        KitError: the stack's objects don't use a tunnel, or the tunnel can't be opened.
    """
    _require_ssh()
    own = _cluster_stack(project, stack)
    find = _finder(tunnel_options_of(own.config), region_of(own.config), token.sign_in_of(own.settings))
    link = Tunnel(find, own.port, _Steps(progress))
    try:
        find()
        is_there = True
    except NotYet:
        is_there = False
    with link.beside():
        if is_there:
            link.wait_until_open(OPENING_S)
        else:
            progress.step("the tunnel opens as soon as the cluster and its bastion are there")
        yield


def api_server_access(project: Path, stack: str, through_tunnel: bool) -> AbstractContextManager[None]:
    """Return the context in which a command reaches the API server: a tunnel that the command opens, or an empty one.
    In the latter case a note is shown if the stack's objects need a tunnel and none is open.
    """
    if through_tunnel:
        return during(project, stack, console.progress())
    port = _local_port(config.settings(project, stack).get(API_SERVER))
    if port and not is_reachable(tunnels.LOCALHOST, port):
        address = f"{tunnels.LOCALHOST}:{port}"
        console.progress().step(f"nothing listens at {address} ({API_SERVER}) yet: use --tunnel, or `llmd-oke tunnel`")
    return nullcontext()


def _local_port(address: str | None) -> int | None:
    """Return the port of an address on this machine; None for addresses elsewhere.

    Raises:
        KitError: the address is malformed.
    """
    host, port = host_and_port(address) if address else ("", None)
    return port if host in {tunnels.LOCALHOST, "localhost"} else None


@dataclass(frozen=True)
class _ClusterStack:
    """The stack whose file describes the cluster: the stack itself, or the one named by `clusterStack`."""

    stack: str
    config: StackConfig
    settings: Mapping[str, str]

    @property
    def port(self) -> int:
        """Local port that the stack's objects use for the API server.

        Raises:
            KitError: the stack's objects use an address that isn't on this machine.
        """
        address = self.settings.get(API_SERVER)
        if address is None and isinstance(self.config.cluster, ExistingCluster):
            return PORT  # the user's kubeconfig has the address
        if port := _local_port(address):
            return port
        raise KitError(
            "The stack's objects don't go through a tunnel: "
            + (f"{API_SERVER} is {address}." if address else f"{API_SERVER} is not set."),
            f"Set it once: pulumi config set {API_SERVER} https://{tunnels.LOCALHOST}:{PORT} --stack {self.stack}",
        )


class _Steps:
    """Progress that shows steps only, since details would interrupt the engine's display."""

    def __init__(self, progress: Progress) -> None:
        self.step = progress.step

    def detail(self, text: str) -> None:
        """Ignore a detail."""


def _cluster_stack(project: Path, stack: str) -> _ClusterStack:
    document = plan_stack_file(project, stack).config
    if document.cluster is None and document.cluster_stack:
        stack, document = document.cluster_stack, plan_stack_file(project, document.cluster_stack).config
    return _ClusterStack(stack, document, config.settings(project, stack))


def tunnel_options_of(
    stack: StackConfig, cluster_id: str | None = None, bastion_id: str | None = None
) -> TunnelOptions:
    """Return which cluster and bastion a tunnel uses; the arguments override those of the stack.

    Raises:
        KitError: neither the argument nor the stack file has the OCID of the cluster.
    """
    cluster = stack.cluster
    if isinstance(cluster, CreateCluster):
        network = cluster.network
        return TunnelOptions(
            cluster_id=cluster_id or cluster.cluster_id,
            cluster_name=cluster.name,
            compartment_id=cluster.compartment_id,
            bastion_id=bastion_id or network.bastion_service.ocid,
            network_compartment_id=network.compartment_id,
        )
    named = cluster.identifier if isinstance(cluster, ExistingCluster) else ""
    if cluster_id or named.startswith("ocid1.cluster."):
        return TunnelOptions(cluster_id=cluster_id or named, bastion_id=bastion_id)
    raise KitError("The stack file has no OCID of its cluster.", "Give --cluster-id, or cluster.identifier an OCID.")


def _finder(tunnel_options: TunnelOptions, region: str, who: SignIn) -> Find:
    """Return a function that finds the tunnel's target. It signs in at each call, since tunnels outlive some tokens."""

    def find() -> tuple[OciClient, TunnelTarget]:
        client = token.client_of(who, region)
        return client, tunnels.target(client, tunnel_options)

    return find


def _require_ssh() -> None:
    if shutil.which("ssh") is None:
        raise KitError("`ssh` is not on PATH.", "Install OpenSSH's client.")
