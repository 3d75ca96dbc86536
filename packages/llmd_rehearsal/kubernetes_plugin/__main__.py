"""`python -m llmd_rehearsal.kubernetes_plugin`: serves until SIGINT or SIGTERM.

As every plug-in of Pulumi's it takes the engine's address, which it has no use for, and prints its port.
"""

import argparse

from llmd_rehearsal.kubernetes_plugin.server import start
from llmd_rehearsal.plugin_protocol import PluginServer, serve_until_signal


def main() -> None:
    """Serve on a port of 127.0.0.1, print it, and log every call to standard error."""
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
