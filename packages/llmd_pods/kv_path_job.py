"""The program of the two pods that measure a path of KV cache.

They meet through ConfigMaps that are theirs alone: the prefill side says where its buffer is, the decode side reads it
and publishes what it measured, and then the prefill side publishes what its ports counted.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from llmd_pods.cluster import InCluster, from_environment
from llmd_pods.config_maps import owned_metadata
from llmd_pods.errors import KitError
from llmd_pods.kv_path import (
    PATTERN,
    SIDES,
    Endpoint,
    KvPathRequest,
    Region,
    SideReport,
    from_json,
    measure,
    nixl,
    pytorch,
    read_counters,
)

KEY = "json"
"""Of what pods tell each other, and the command, in ConfigMaps."""

PAUSE_S = 0.5
MEETING_LIMIT_S = 900.0
"""For the other pod to start, with its image to pull."""


class Board:
    """The ConfigMaps of one Job, as its pods write and read them."""

    def __init__(
        self,
        request: KvPathRequest,
        cluster: InCluster,
        uid: str,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._cluster = cluster
        self._uid = uid
        self._pause = pause
        self._clock = clock

    def post(self, name: str, text: str) -> None:
        """Writes a ConfigMap of the Job.

        Raises:
            KitError: the API server refuses.
        """
        metadata = owned_metadata(name, self._request.namespace, self._request.job, self._uid)
        self._cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}})

    def await_text(self, name: str, limit_s: float, what: str) -> str:
        """What the other pod writes there, once it has.

        Raises:
            KitError: it doesn't in time, or the API server refuses.
        """
        deadline_s = self._clock() + limit_s
        while self._clock() < deadline_s:
            data = self._cluster.config_map(self._request.namespace, name)
            if data is not None:
                return data[KEY]
            self._pause(PAUSE_S)
        raise KitError(f"Waited {limit_s:.0f} s for {what}.")


def main() -> int:
    """Does this pod's part of the request in the file that the only argument names."""
    try:
        request = from_json(Path(sys.argv[1]).read_bytes())
        run(request, os.environ, Board(request, from_environment(os.environ), os.environ["JOB_UID"]))
    except KitError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def run(request: KvPathRequest, environment: Mapping[str, str], board: Board) -> None:
    """This pod's part.

    Raises:
        KitError: NIXL is not there or fails, or the other pod doesn't come.
    """
    side = SIDES[int(environment["JOB_COMPLETION_INDEX"])]
    package, api = nixl()
    fill = PATTERN if side == "prefill" else 0
    name = f"{request.job}-{side}"
    endpoint = Endpoint(name, request.buffer_bytes, fill, api, pytorch())
    try:
        node = environment.get("NODE_NAME", "")
        blank = SideReport(side=side, node=node, package=package, before=read_counters(), after={})
        report = (_serve if side == "prefill" else _read)(request, endpoint, board, blank)
    finally:
        endpoint.close()
    board.post(request.report_name(side), report.model_dump_json())


def _serve(request: KvPathRequest, endpoint: Endpoint, board: Board, report: SideReport) -> SideReport:
    """NIXL's own thread answers reads while this one waits for their end."""
    board.post(request.meeting_name, endpoint.region.model_dump_json())
    print("waiting to be read", flush=True)
    limit_s = MEETING_LIMIT_S + request.limit_s
    board.await_text(request.report_name("decode"), limit_s, "the decode side to read")
    return report.model_copy(update={"after": read_counters()})


def _read(request: KvPathRequest, endpoint: Endpoint, board: Board, report: SideReport) -> SideReport:
    region = board.await_text(request.meeting_name, MEETING_LIMIT_S, "the prefill side's buffer")
    timings = measure(endpoint, Region.model_validate_json(region), request, tell=partial(print, flush=True))
    return report.model_copy(update={"after": read_counters(), "timings": timings})
