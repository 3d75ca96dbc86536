"""`python -m llmd_oke.rehearsal.preview_speed`: measures and prints; ends with 1 where a limit is passed."""

import argparse
import json
import signal
import sys
from pathlib import Path

from llmd_oke.errors import KitError
from llmd_oke.progress import PlainProgress
from llmd_oke.rehearsal.preview_speed import bench
from llmd_oke.rehearsal.preview_speed.bench import Result, Timing


def main() -> None:
    """Measures what the command line asks for."""
    given = _arguments()
    signal.signal(signal.SIGTERM, _end)  # so that the world goes too
    try:
        result = bench.measure(given.project, given.stack, given.runs, given.sizes, PlainProgress(sys.stderr))
    except KitError as error:
        print(f"error {error}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(result.as_json(), indent=2) if given.json else _shown(result))
    sys.exit(not result.within_limits)


def _end(_signal: int, _frame: object) -> None:
    sys.exit(143)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench-preview", description=bench.__doc__)
    parser.add_argument("--project", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--stack", default="reference", help="stack that creates its cluster (reference)")
    parser.add_argument("--runs", type=int, default=5, help="previews of each program (5)")
    parser.add_argument(
        "--sizes", type=_sizes, default=bench.SIZES, help="resources of the larger programs; 0 for none"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(size for word in text.split(",") if (size := int(word)) > 0)


def _shown(result: Result) -> str:
    lines = [f"{'previews (all measured)':26} {'resources':>9}  {'fastest':>8}  {'median':>8}  {'per 100':>8}"]
    lines += [_line(timing) for timing in (result.stack, result.plain, result.loaded, *result.sizes)]
    lines.append(
        f"{result.stack.program} beside the engine alone: {result.ratio:.2f} by the fastest runs,"
        f" {result.ratio_of_medians:.2f} by the medians; limit {bench.RATIO_LIMIT}"
    )
    lines.append(
        f"{result.stack.program} beside the engine with Pulumi's packages loaded: {result.ratio_to_loaded:.2f}"
        " by the fastest runs"
    )
    if result.growth is not None:
        lines.append(
            f"a resource of the largest program costs {result.growth:.2f} of one of the smallest;"
            f" limit {bench.GROWTH_LIMIT}"
        )
    return "\n".join(lines)


def _line(timing: Timing) -> str:
    times = (timing.min_s, timing.median_s, timing.s_per_100_resources)
    return f"{timing.program:26} {timing.resources:9d}" + "".join(f"  {seconds:6.2f} s" for seconds in times)


if __name__ == "__main__":
    main()
