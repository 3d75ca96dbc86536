"""Program of the container that runs after another tool's container and copies the tool's result files to ConfigMaps,
as text.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from llmd_base.cluster import from_environment
from llmd_base.config_maps import MAX_CHUNKS, config_maps, pieces
from llmd_base.errors import KitError

KEPT = frozenset({".json", ".yaml", ".yml", ".csv", ".log", ".txt"})


def main() -> int:
    """Write the text files of the directory in the first argument to ConfigMaps; return 0, or 1 after an error."""
    try:
        publish(Path(sys.argv[1]), os.environ)
    except KitError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def publish(folder: Path, environment: Mapping[str, str]) -> None:
    """Write the text files below a directory to ConfigMaps that this pod's Job owns, by which they leave the cluster.

    Raises:
        KitError: the directory has no text files, they are too large, or the API server refuses.
    """
    texts = files(folder)
    if not texts:
        raise KitError(f"{folder} holds no result")
    parts = pieces(json.dumps(texts).encode())
    if len(parts) > MAX_CHUNKS:
        raise KitError(
            f"the result is too large: {len(parts)} ConfigMaps of {MAX_CHUNKS}", "Leave per-request files out."
        )
    job = environment["JOB_NAME"]
    names = [f"{job}-0-{chunk}" for chunk in range(len(parts))]
    cluster = from_environment(environment)
    for config_map in config_maps(parts, names, environment["NAMESPACE"], job, environment["JOB_UID"]):
        cluster.apply(config_map)


def files(folder: Path) -> dict[str, str]:
    """Return the content of the text files below a directory, by path relative to it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in KEPT)
    return {path.relative_to(folder).as_posix(): path.read_text(errors="replace") for path in paths}
