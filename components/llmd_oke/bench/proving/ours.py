"""Our own generator as a program: constant rate against the exact server, the times to first token as JSON.

`python -m llmd_oke.bench.proving.ours URL REQUESTS_PER_S SECONDS`
"""

import asyncio
import json
import sys

from llmd_oke.bench.deployment.targets import Target
from llmd_oke.bench.load.stage import Stage
from llmd_oke.bench.load.stages import run_stages
from llmd_oke.bench.records.percentiles import percentile
from llmd_oke.bench.workload.lengths import Fixed
from llmd_oke.bench.workload.shapes import ConstantRate
from llmd_oke.bench.workload.workloads import Workload


def main(url: str, requests_per_s: float, duration_s: float) -> None:
    """Run one stage and print what it measured."""
    stage = Stage(ConstantRate(requests_per_s), duration_s=duration_s)
    workload = Workload(Fixed(128), Fixed(50))
    (result,) = asyncio.run(run_stages(Target(url, "model"), [stage], workload, limit_s=duration_s + 30))
    if result.shortfall:
        sys.exit(result.shortfall)
    ttfts_ms = sorted(1000 * record.ttft_s for record in result.records if record.ttft_s is not None)
    found = {
        "mean_ms": sum(ttfts_ms) / len(ttfts_ms),
        "p99_ms": percentile(ttfts_ms, 99),
        "failed": sum(not record.succeeded for record in result.records),
        "spoiled": result.health.spoiled,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
