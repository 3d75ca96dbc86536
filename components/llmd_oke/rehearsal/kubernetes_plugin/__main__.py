"""`python -m llmd_oke.rehearsal.kubernetes_plugin --port PORT`: serves until it is told to end."""

import argparse
import logging
import signal
import sys

from llmd_oke.rehearsal.kubernetes_plugin.server import start


def main() -> None:
    """Serves on a port of 127.0.0.1 and logs every call to standard error."""
    parser = argparse.ArgumentParser(prog="llmd_oke.rehearsal.kubernetes_plugin", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the port on 127.0.0.1")
    port = parser.parse_args().port
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = start(port)
    signal.sigwait(ends)
    server.stop()


if __name__ == "__main__":
    main()
