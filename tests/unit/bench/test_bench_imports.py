"""The generator runs from a ConfigMap in an image with nothing but Python."""

import subprocess
import sys
from pathlib import Path

import llmd_bench

PACKAGES = Path(llmd_bench.__file__).parents[1]


def test_the_load_generator_imports_only_the_standard_library():
    modules = ", ".join(f"llmd_bench.load.{name}" for name in ("stages", "generator", "notation", "records"))
    code = f"import sys; sys.path.insert(0, {str(PACKAGES)!r}); import {modules}"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
