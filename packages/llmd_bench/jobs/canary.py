"""Canary program of a model: sends known prompts in rounds until SIGTERM, and exposes metrics of the answers."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import httpx
from llmd_base.cluster import from_environment
from llmd_base.errors import KitError
from prometheus_client import CollectorRegistry, start_http_server

from llmd_bench.canary import Canaries, CanaryMetrics
from llmd_bench.canary_request import METRICS_PORT, from_json


def main() -> int:
    """Run the canaries of the `CanaryRequest` in the file that the only argument names; return the exit code."""
    request, ended = from_json(Path(sys.argv[1]).read_bytes()), threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    registry = CollectorRegistry()
    start_http_server(METRICS_PORT, registry=registry)
    with httpx.Client(trust_env=False) as client:
        cluster = from_environment(os.environ)
        canaries = Canaries(
            request, lambda labels: cluster.pods(request.namespace, labels), client, CanaryMetrics(registry)
        )
        number = 0
        while not ended.is_set():
            begun_s = time.monotonic()
            try:
                canaries.round(number)
            except KitError as error:
                print(error, file=sys.stderr, flush=True)
            number += 1
            ended.wait(max(0.0, request.every_s - (time.monotonic() - begun_s)))
    return 0
