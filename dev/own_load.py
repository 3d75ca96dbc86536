"""The kit's own load generator as a program: constant rate against the exact server, with the times to first token as
JSON.

`dev/own_load.py URL REQUESTS_PER_S SECONDS`
"""

import asyncio
import json
import sys

from llmd_bench.load.completions import CompletionsTarget
from llmd_bench.load.records import percentile
from llmd_bench.load.stages import LoadStage, run_stages
from llmd_bench.load.workload import ConstantRate, Fixed, RequestWorkload


def main(url: str, requests_per_s: float, duration_s: float) -> None:
    """Send a load at a constant rate to the server with exact latencies (`dev/exact_server.py`) at `url`, with the
    kit's own load generator, and print the times to first token as JSON.
    """
    stage = LoadStage(ConstantRate(requests_per_s), duration_s=duration_s)
    workload = RequestWorkload(Fixed(128), Fixed(50))
    (result,) = asyncio.run(run_stages(CompletionsTarget(url, "model"), [stage], workload, limit_s=duration_s + 30))
    if result.shortfall:
        sys.exit(result.shortfall)
    ttfts_ms = sorted(1000 * record.ttft_s for record in result.records if record.ttft_s is not None)
    figures = {
        "mean_ms": sum(ttfts_ms) / len(ttfts_ms),
        "p99_ms": percentile(ttfts_ms, 99),
        "failed": sum(not record.succeeded for record in result.records),
        "spoiled": result.health.spoiled,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
