"""The program of the two pods that measure a path of KV cache.

They meet through ConfigMaps that are theirs alone: the prefill side says where its buffer is, the decode side reads it
and publishes what it measured, and then the prefill side publishes what its ports counted.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from llmd_oke.bench.in_cluster.cluster import InCluster, from_environment
from llmd_oke.bench.in_cluster.parcels import owned
from llmd_oke.bench.kv_path.counters import read_counters
from llmd_oke.bench.kv_path.endpoint import PATTERN, Endpoint, Region, nixl, pytorch
from llmd_oke.bench.kv_path.measuring import measure
from llmd_oke.bench.kv_path.request import SIDES, KvPathRequest, Side, from_json
from llmd_oke.bench.kv_path.result import Report
from llmd_oke.errors import KitError

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
        metadata = owned(name, self._request.namespace, self._request.job, self._uid)
        self._cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}})

    def await_text(self, name: str, limit_s: float, what: str) -> str:
        """What the other pod writes there, once it has.

        Raises:
            KitError: it doesn't in time, or the API server refuses.
        """
        deadline_s = self._clock() + limit_s
        while self._clock() < deadline_s:
            told = self._cluster.config_map(self._request.namespace, name)
            if told is not None:
                return told[KEY]
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
        report = (_serve if side == "prefill" else _read)(request, endpoint, board, _blank(side, package, environment))
    finally:
        endpoint.close()
    board.post(request.report_name(side), report.model_dump_json())


def _blank(side: Side, package: str, environment: Mapping[str, str]) -> Report:
    return Report(side=side, node=environment.get("NODE_NAME", ""), package=package, before=read_counters(), after={})


def _serve(request: KvPathRequest, endpoint: Endpoint, board: Board, report: Report) -> Report:
    """NIXL's own thread answers reads while this one waits for their end."""
    board.post(request.meeting_name, endpoint.region.model_dump_json())
    print("waiting to be read", flush=True)
    limit_s = MEETING_LIMIT_S + request.limit_s
    board.await_text(request.report_name("decode"), limit_s, "the decode side to read")
    return report.model_copy(update={"after": read_counters()})


def _read(request: KvPathRequest, endpoint: Endpoint, board: Board, report: Report) -> Report:
    told = board.await_text(request.meeting_name, MEETING_LIMIT_S, "the prefill side's buffer")
    timings = measure(endpoint, Region.model_validate_json(told), request, tell=_tell)
    return report.model_copy(update={"after": read_counters(), "timings": timings})


def _tell(text: str) -> None:
    print(text, flush=True)
