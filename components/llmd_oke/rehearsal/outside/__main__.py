"""`python -m llmd_oke.rehearsal.outside --address ADDRESS …`: serves until it is told to end."""

import argparse
import asyncio
import logging
import signal
import ssl
from pathlib import Path

from aiohttp import web

from llmd_oke import catalogue
from llmd_oke.rehearsal.outside.facts import PORT, outside
from llmd_oke.rehearsal.outside.server import ModelSources


async def serve(address: str, context: ssl.SSLContext) -> None:
    """Serves the repositories of the catalogue until SIGTERM or SIGINT; OSError when the address can't be had."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    models = (catalogue.model(name) for name in catalogue.model_names())
    sources = ModelSources(outside(), [model for model in models if model])
    runner = web.AppRunner(sources.application(), access_log_format='%s "%r"')
    await runner.setup()
    await web.TCPSite(runner, address, PORT, ssl_context=context).start()
    await ended.wait()
    await runner.cleanup()


def main() -> None:
    """Serves with the certificate that the command line names."""
    parser = argparse.ArgumentParser(prog="llmd_oke.rehearsal.outside", description=__doc__)
    parser.add_argument("--address", required=True, help="address that the hosts' names lead to")
    parser.add_argument("--certificate", type=Path, required=True, help="PEM file for all of the hosts")
    parser.add_argument("--key", type=Path, required=True, help="its private key")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(given.certificate, given.key)
    asyncio.run(serve(given.address, context))


if __name__ == "__main__":
    main()
