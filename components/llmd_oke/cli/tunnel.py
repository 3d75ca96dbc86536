"""`llmd-oke tunnel`: a private API endpoint, reachable from this machine through the OCI Bastion service."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from llmd_oke.access import tunnel as tunnels
from llmd_oke.access.oci_client import SignedOciClient
from llmd_oke.access.places import region_of
from llmd_oke.cli import console, options, preflight, token
from llmd_oke.config import CreateCluster, ExistingCluster, StackConfig
from llmd_oke.errors import KitError
from llmd_oke.operations.pulumi_cli import pulumi_cli
from llmd_oke.planning import plan_stack_file

CLUSTER_TYPE = "oci:ContainerEngine/cluster:Cluster"


def tunnel(
    stack: options.Stack,
    project: options.Project = options.HERE,
    cluster_id: Annotated[str | None, typer.Option(help="OCID of the cluster; the stack's if it has one.")] = None,
    bastion_id: Annotated[str | None, typer.Option(help="OCID of the bastion; that of the cluster's VCN.")] = None,
    port: Annotated[int, typer.Option(help="Local port.", min=1, max=65535)] = 6443,
    session_s: Annotated[int, typer.Option(help="Longest life of the tunnel in s.", min=1800, max=10800)] = 10800,
    auth: token.AuthOption = None,
    profile: token.Profile = None,
    region: preflight.Region = None,
) -> None:
    """Make the cluster's private API endpoint answer at https://127.0.0.1:PORT until interrupted.

    The session and its key are this command's own and end with it.
    """
    if shutil.which("ssh") is None:
        raise KitError("`ssh` is not on PATH.", "Install OpenSSH's client.")
    config = plan_stack_file(project, stack).config
    where = region_of(config, region)
    client = SignedOciClient(token.signer_of(auth, where, profile), where)
    own_bastion, compartment_id = bastion_place(config)
    chosen = cluster_id or cluster_of(config) or _cluster_in_state(project, stack)
    wanted = tunnels.target(client, chosen, bastion_id or own_bastion, session_s, compartment_id)
    progress = console.progress()
    with tempfile.TemporaryDirectory(prefix="llmd-oke-tunnel-") as folder:
        key, public = tunnels.make_key(Path(folder))
        progress.step(f"asking the bastion for a session to {wanted.host}:{wanted.port}")
        with tunnels.session(client, wanted, public, progress) as session:
            progress.step(f"https://127.0.0.1:{port} leads to the API server; Ctrl-C ends it")
            status = subprocess.run(tunnels.ssh_command(session.command, key, port), check=False).returncode
    raise typer.Exit(status)


def cluster_of(config: StackConfig) -> str | None:
    """The OCID of the cluster, where the stack file has it."""
    cluster = config.cluster
    if isinstance(cluster, CreateCluster):
        return cluster.cluster_id
    if isinstance(cluster, ExistingCluster) and cluster.identifier.startswith("ocid1.cluster."):
        return cluster.identifier
    return None


def bastion_place(config: StackConfig) -> tuple[str | None, str | None]:
    """The OCIDs of the bastion and of the network's compartment, where the stack file has them."""
    cluster = config.cluster
    if not isinstance(cluster, CreateCluster):
        return None, None
    return cluster.network.bastion_service.ocid, cluster.network.compartment_id


def _cluster_in_state(project: Path, stack: str) -> str:
    """The OCID of the cluster that the stack made.

    Raises:
        KitError: it made none.
    """
    for resource in pulumi_cli(project, stack).resources():
        if resource.get("type") == CLUSTER_TYPE and resource.get("id"):
            return str(resource["id"])
    raise KitError("Neither the stack file nor the stack's state has a cluster's OCID.", "Give --cluster-id.")
