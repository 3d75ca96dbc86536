"""Command `python -m llmd_rehearsal.oci_plugin --port PORT`: the stand-in OCI plug-in, until SIGINT or SIGTERM."""

import argparse
from pathlib import Path

from llmd_oke.values import open_project

from llmd_rehearsal.oci_plugin.local_cluster import AgentNodes
from llmd_rehearsal.oci_plugin.region import DEFAULT_TIME_SCALE
from llmd_rehearsal.oci_plugin.server import PluginOptions, start
from llmd_rehearsal.plugin_protocol import serve_until_signal


def main() -> None:
    """Serve the stand-in for Pulumi's OCI plug-in on the port of 127.0.0.1 that the command line names, and log every
    gRPC call to standard error.
    """
    parser = argparse.ArgumentParser(prog="llmd_rehearsal.oci_plugin", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the port on 127.0.0.1")
    parser.add_argument("--project", type=Path, help="folder of the project whose own values/ count too")
    parser.add_argument("--kubeconfig", type=Path, help="of the one cluster behind all of OKE's")
    parser.add_argument("--journal", type=Path, help="file that keeps the records")
    parser.add_argument("--faults", type=Path, help="file that says which requests fail")
    parser.add_argument("--nodes-url", help="control API of the agent that adds and removes nodes")
    parser.add_argument("--time-scale", type=float, default=DEFAULT_TIME_SCALE, help="wall seconds for one of OCI's")
    parser.add_argument(
        "--autoscaler-time-scale", type=float, default=1.0, help="wall seconds for one of the cluster autoscaler's"
    )
    parser.add_argument("--helm", default="", help="path of Helm, which installs add-ons")
    parser.add_argument("--etcd", default="", help="address of etcd, whose objects go with an OKE cluster")
    parser.add_argument("--rest-port", type=int, help="the port on 127.0.0.1 where OCI's own API answers")
    arguments = parser.parse_args()
    open_project(arguments.project)
    options = PluginOptions(
        kubeconfig=arguments.kubeconfig,
        journal=arguments.journal,
        faults=arguments.faults,
        nodes=AgentNodes(arguments.nodes_url) if arguments.nodes_url else None,
        time_scale=arguments.time_scale,
        helm=arguments.helm,
        etcd=arguments.etcd,
        rest_port=arguments.rest_port,
        autoscaler_time_scale=arguments.autoscaler_time_scale,
    )
    serve_until_signal(lambda: start(arguments.port, options))


if __name__ == "__main__":
    main()
