"""Our own generator as a program: constant rate against the exact server, the times to first token as JSON.

`python -m llmd_oke.bench.proving.ours URL REQUESTS_PER_S SECONDS`
"""

import json
import sys

from llmd_oke.bench.lengths import Fixed
from llmd_oke.bench.percentiles import percentile
from llmd_oke.bench.shapes import ConstantRate
from llmd_oke.bench.stages import Stage, run_stages_now
from llmd_oke.bench.targets import Target
from llmd_oke.bench.workloads import Workload


def main(url: str, requests_per_s: float, duration_s: float) -> None:
    """Run one stage and print what it measured."""
    stage = Stage(ConstantRate(requests_per_s), duration_s=duration_s)
    workload = Workload(Fixed(128), Fixed(50))
    (result,) = run_stages_now(Target(url, "model"), [stage], workload, limit_s=duration_s + 30)
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
