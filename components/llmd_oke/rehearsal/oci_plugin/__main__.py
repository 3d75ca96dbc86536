"""`python -m llmd_oke.rehearsal.oci_plugin --port PORT`: serves until it is told to end."""

import argparse
from pathlib import Path

from llmd_oke.rehearsal.oci_plugin.clocks import DEFAULT_TIME_SCALE
from llmd_oke.rehearsal.oci_plugin.node_control import AgentNodes
from llmd_oke.rehearsal.oci_plugin.server import Setting, start
from llmd_oke.rehearsal.plugin_protocol.serving import serve_until_told


def main() -> None:
    """Serves on a port of 127.0.0.1 and logs every call to standard error."""
    parser = argparse.ArgumentParser(prog="llmd_oke.rehearsal.oci_plugin", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the port on 127.0.0.1")
    parser.add_argument("--kubeconfig", type=Path, help="of the cluster that clusters lead to")
    parser.add_argument("--journal", type=Path, help="file that keeps what there is")
    parser.add_argument("--faults", type=Path, help="file that says which requests fail")
    parser.add_argument("--nodes-url", help="control API that nodes come and go by")
    parser.add_argument("--time-scale", type=float, default=DEFAULT_TIME_SCALE, help="wall seconds for one of OCI's")
    parser.add_argument("--helm", default="", help="path of Helm, which add-ons are installed with")
    parser.add_argument("--etcd", default="", help="address of what holds the cluster's objects, which go with it")
    parser.add_argument("--rest-port", type=int, help="the port on 127.0.0.1 where OCI's own API answers")
    given = parser.parse_args()
    nodes = AgentNodes(given.nodes_url) if given.nodes_url else None
    files = (given.kubeconfig, given.journal, given.faults)
    setting = Setting(*files, nodes, given.time_scale, given.helm, given.etcd, given.rest_port)
    serve_until_told(lambda: start(given.port, setting))


if __name__ == "__main__":
    main()
