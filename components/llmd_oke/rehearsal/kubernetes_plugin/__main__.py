"""`python -m llmd_oke.rehearsal.kubernetes_plugin --port PORT`: serves until it is told to end."""

import argparse

from llmd_oke.rehearsal.kubernetes_plugin.server import start
from llmd_oke.rehearsal.plugin_protocol.serving import serve_until_told


def main() -> None:
    """Serves on a port of 127.0.0.1 and logs every call to standard error."""
    parser = argparse.ArgumentParser(prog="llmd_oke.rehearsal.kubernetes_plugin", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the port on 127.0.0.1")
    parser.add_argument("--helm", default="", help="path of Helm; from PATH if left out")
    arguments = parser.parse_args()
    serve_until_told(lambda: start(arguments.port, helm=arguments.helm))


if __name__ == "__main__":
    main()
