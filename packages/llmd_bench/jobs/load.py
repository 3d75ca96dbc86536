"""Program of the pods that send a load together: each pod sends its share, from a common start time."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmd_base.cluster import InCluster, from_environment
from llmd_base.config_maps import config_maps, owned_metadata
from llmd_base.errors import KitError

from llmd_bench import run_context
from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.pod_load import LoadRequest, from_json, pack
from llmd_bench.load.stages import StageResult, run_stages

TERMINATION_LOG = Path("/dev/termination-log")
LONGEST_WORDS = 2000

LEAD_S = 4.0
"""Seconds from the creation of the start ConfigMap (a timestamp in whole seconds) to the start of the load; waiting
pods poll for the ConfigMap four times a second.
"""

START_LIMIT_S = 900.0
START_PAUSE_S = 0.25

CLOCKS_APART_S = 5.0
"""Maximum lag in seconds of a pod's clock behind the API server's clock. A pod whose clock lags starts later than the
other pods by the lag.
"""

INTERRUPTED = 130
"""Exit code of a pod that was interrupted before its load began."""


def main() -> int:
    """Send this pod's share of the `LoadRequest` in the file that the only argument names; return the exit code."""
    try:
        request = from_json(Path(sys.argv[1]).read_bytes())
        cluster = from_environment(os.environ)
        with sigterm_as_interrupt():
            results = run(request, os.environ, cluster)
        publish(request, results, os.environ, cluster)
    except KeyboardInterrupt:
        return INTERRUPTED
    except KitError as error:
        print(error, file=sys.stderr, flush=True)
        if TERMINATION_LOG.exists():
            TERMINATION_LOG.write_text(str(error)[:LONGEST_WORDS])
        return 1
    return 0


@contextmanager
def sigterm_as_interrupt() -> Generator[None]:
    """Handle the first SIGTERM as SIGINT (Ctrl-C), so that the requests measured so far are published; ignore SIGTERM
    afterwards.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    yield
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def run(request: LoadRequest, environment: Mapping[str, str], cluster: InCluster) -> list[StageResult]:
    """Send this pod's share of the load from the common start on, and return its stages' results.

    Raises:
        KitError: the start ConfigMap doesn't appear in time, the clocks differ too much, or the target's URL is
            invalid.
    """
    how = run_context.from_environment(environment)
    pod = int(environment["JOB_COMPLETION_INDEX"])

    async def start_at() -> float:
        cluster.apply(ready_config_map(request, pod, environment["JOB_UID"]))
        print(f"pod {pod} of {request.parallelism} waits for the common start", flush=True)
        return await wait_for_start(request, cluster)

    load = run_stages(
        CompletionsTarget(request.base_url, request.model),
        request.stages(),
        request.workload(),
        limit_s=request.limit_s,
        processes=request.processes,
        on_progress=lambda live: print(live, flush=True),
        conditions=request.conditions(pod, how.time_scale, start_at),
    )
    return asyncio.run(load)


def ready_config_map(request: LoadRequest, pod: int, uid: str) -> dict[str, Any]:
    """Return the ConfigMap whose existence signals that the pod's load generator is ready to start."""
    metadata = owned_metadata(request.ready_name(pod), request.namespace, request.job, uid)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def wait_for_start(
    request: LoadRequest,
    cluster: InCluster,
    *,
    limit_s: float = START_LIMIT_S,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> float:
    """Wait until the start ConfigMap exists, and return the start time in seconds since the Unix epoch. The time comes
    from the API server's `creationTimestamp`, since the clock of the ConfigMap's author may be wrong.

    Raises:
        KitError: the ConfigMap doesn't appear within `limit_s`, or this pod's clock lags more than `CLOCKS_APART_S`.
    """
    deadline_s = clock() + limit_s
    while clock() < deadline_s:
        created_s = cluster.created_s(request.namespace, request.start_name)
        if created_s is None:
            await pause(START_PAUSE_S)
            continue
        behind_s = created_s - now()
        if behind_s > CLOCKS_APART_S:
            limit = f"at most {CLOCKS_APART_S:.0f} s are taken"
            raise KitError(f"the node's clock is {behind_s:.0f} s behind the API server's, {limit}")
        return created_s + LEAD_S
    raise KitError(f"nobody said within {limit_s:.0f} s when to begin: ConfigMap {request.start_name}")


def publish(
    request: LoadRequest, results: list[StageResult], environment: Mapping[str, str], cluster: InCluster
) -> None:
    """Write the results of this pod's share of the load to ConfigMaps that the Job owns."""
    pod = int(environment["JOB_COMPLETION_INDEX"])
    parts = pack(run_context.from_environment(environment), results)
    names = [request.part_name(pod, chunk) for chunk in range(len(parts))]
    for config_map in config_maps(parts, names, request.namespace, request.job, environment["JOB_UID"]):
        cluster.apply(config_map)
