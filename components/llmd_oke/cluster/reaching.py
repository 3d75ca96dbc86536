"""Waiting for the tunnel to an API server.

Pulumi's Kubernetes provider looks for the API server once, when it is configured, and takes it for unreachable from
then on (pulumi-kubernetes, `Configure` in provider.go). So nobody gets the kubeconfig of a new cluster before its
tunnel is there.
"""

import asyncio
import base64
import ssl
import time

import pulumi

from llmd_oke.access.places import host_and_port
from llmd_oke.cluster.kubeconfig import Access
from llmd_oke.errors import KitError

PATIENCE_S = 900.0
LOOK_S = 2.0
ANSWER_S = 10.0

TUNNEL = "Use `llmd-oke up --tunnel`, or keep `llmd-oke tunnel` running in a second shell, on the port of that address."


async def wait_until_reached(api_server: str, access: Access, patience_s: float = PATIENCE_S) -> None:
    """Returns once the cluster's API server answers at that address.

    Raises:
        KitError: nothing answers in time, another server does, or address or authority can't be read.
    """
    authority = _authority(access)
    ends_at_s, told = time.monotonic() + patience_s, False
    while cause := await _hindrance(api_server, access.host, authority):
        if time.monotonic() >= ends_at_s:
            raise KitError(f"The API server does not answer at {api_server} after {patience_s:g} s: {cause}.", TUNNEL)
        if not told:
            pulumi.log.info(f"waiting for the API server at {api_server}: {cause}. {TUNNEL}")
            told = True
        await asyncio.sleep(LOOK_S)


async def _hindrance(api_server: str, name: str, authority: ssl.SSLContext) -> str:
    """Why the API server is not reached; empty if it is. Its certificate must be of the cluster's authority."""
    host, port = host_and_port(api_server)
    try:
        opening = asyncio.open_connection(host, port, ssl=authority, server_hostname=name)
        _, writer = await asyncio.wait_for(opening, ANSWER_S)
        writer.close()
    except ssl.SSLCertVerificationError as error:
        raise KitError(
            f"What answers at {api_server} is not this cluster's API server: {error.verify_message}.",
            "Is a tunnel to another cluster open on that port?",
        ) from error
    except (OSError, TimeoutError) as error:
        return str(error) or "no answer"
    return ""


def _authority(access: Access) -> ssl.SSLContext:
    """Trusts the cluster's authority alone; its name is checked by whoever uses the kubeconfig."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=base64.b64decode(access.certificate_authority).decode())
    except (ValueError, ssl.SSLError) as error:
        remedy = "A tunnel can't be told from another one without it (certificate-authority-data)."
        raise KitError("The cluster's kubeconfig has no certificate authority that can be read.", remedy) from error
    return context
