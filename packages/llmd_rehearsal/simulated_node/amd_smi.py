"""Simulated amd-smi: `list --json` and `metric --ecc --json`, in the formats that ROCm/amdsmi documents."""

import json
import sys
from pathlib import Path

NODE = Path("/opt/simulated-node/node.json")
_ECC_KINDS = ("total_correctable", "total_uncorrectable", "total_deferred", "cache_correctable", "cache_uncorrectable")


def main(arguments: list[str]) -> int:
    """Print what amd-smi prints for these command-line arguments; return 2 for arguments that the simulation lacks."""
    gpus: list[str] = json.loads(NODE.read_text())["gpus"]
    if arguments == ["list", "--json"]:
        listed = [
            {
                "gpu": index,
                "bdf": address,
                "uuid": f"00000000-0000-1000-8000-{index:012x}",
                "kfd_id": index,
                "node_id": 2 + index,
                "partition_id": 0,
            }
            for index, address in enumerate(gpus)
        ]
        print(json.dumps(listed))
        return 0
    if arguments == ["metric", "--ecc", "--json"]:
        errors = dict.fromkeys((f"{kind}_count" for kind in _ECC_KINDS), 0)
        print(json.dumps({"gpu_data": [{"gpu": index, "ecc": errors} for index in range(len(gpus))]}))
        return 0
    print(f"the simulated amd-smi knows no {' '.join(arguments)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
