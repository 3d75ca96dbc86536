"""The folder of everything that is downloaded or built once and used again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$LLMD_OKE_CACHE`, or `llmd-oke` in the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`)."""
    if own := os.environ.get("LLMD_OKE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmd-oke"


def module_folder(module: str, version: str) -> Path:
    """Where the charts and CRDs of a Go module are kept once they are on this machine."""
    return cache_folder() / "modules" / f"{module}@{version}"
