"""`python -m llmd_rehearsal.vllm`: the process that serves all simulated vLLM containers of a rehearsed stack."""

import argparse
import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path

from aiohttp import web
from llmd_base.errors import KitError
from llmd_oke.catalogue import open_project, shape, shape_names

from llmd_rehearsal.running_time import RunningLoop, of_process
from llmd_rehearsal.vllm.clocks import WallClock
from llmd_rehearsal.vllm.server import Control, Simulation


def main() -> None:
    """Serve the HTTP API by which simulated vLLM servers are started and stopped, until SIGTERM or SIGINT."""
    arguments = _arguments()
    logging.basicConfig(filename=arguments.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    # Requests and blocks are many and live long; the default thresholds would often stop all servers for milliseconds.
    gc.set_threshold(50_000, 20, 100)
    try:
        with asyncio.Runner(loop_factory=RunningLoop) as runner:
            runner.run(_serve(arguments))
    except KitError as error:
        sys.exit(str(error))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m llmd_rehearsal.vllm", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="address of the control API")
    parser.add_argument("--time-scale", type=float, default=1.0, help="wall seconds for each model second (default 1)")
    parser.add_argument(
        "--startup-scale", type=float, default=0.008, help="the same for loading; the default makes about 1 s of it"
    )
    parser.add_argument(
        "--startup-seconds",
        type=float,
        default=None,
        help="wall seconds that each server takes to start, for any model",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the lengths of answers that have no limit")
    parser.add_argument("--project", type=Path, help="folder of the project whose own values/ count too")
    parser.add_argument("--shape", default="BM.GPU.MI300X.8", help="shape of the nodes, by its name in values/shapes")
    parser.add_argument("--log", type=Path, default=None, metavar="FILE", help="log file (default: standard error)")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    host, _, port = str(arguments.listen).rpartition(":")
    open_project(arguments.project)
    nodes = shape(arguments.shape)
    if nodes is None:
        raise KitError(f"There is no shape {arguments.shape}.", f"Known shapes: {', '.join(shape_names())}.")
    loop = asyncio.get_running_loop()
    clock = WallClock(loop, arguments.time_scale, stood_still_s=lambda: of_process().stood_still_s)
    simulation = Simulation(
        clock,
        nodes,
        arguments.startup_scale,
        arguments.seed,
        startup_s=arguments.startup_seconds,
        project=arguments.project,
    )
    runner = web.AppRunner(Control(simulation).application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, int(port)).start()
    logging.info("control API on %s:%s, time scale %s", host, port, arguments.time_scale)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    await runner.cleanup()


if __name__ == "__main__":
    main()
