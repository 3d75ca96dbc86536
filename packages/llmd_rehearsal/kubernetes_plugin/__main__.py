"""Command `python -m llmd_rehearsal.kubernetes_plugin`: the stand-in Kubernetes plug-in, until SIGINT or SIGTERM.

Like every Pulumi plug-in, it accepts the engine's address as an argument (unused here) and prints its port.
"""

import argparse

from llmd_rehearsal.kubernetes_plugin.server import start
from llmd_rehearsal.plugin_protocol import PluginServer, serve_until_signal


def main() -> None:
    """Serve the stand-in for Pulumi's Kubernetes plug-in on a port of 127.0.0.1, print the port, and log every gRPC
    call to standard error.
    """
    parser = argparse.ArgumentParser(prog="llmd_rehearsal.kubernetes_plugin", description=__doc__)
    parser.add_argument("engine", nargs="?", help="the engine's address")
    parser.add_argument("--port", type=int, default=0, help="the port on 127.0.0.1; a free one if left out")
    parser.add_argument("--helm", default="", help="path of Helm; from PATH if left out")
    arguments = parser.parse_args()

    def start_and_print_port() -> PluginServer:
        server = start(arguments.port, helm=arguments.helm)
        print(server.port, flush=True)
        return server

    serve_until_signal(start_and_print_port)


if __name__ == "__main__":
    main()
