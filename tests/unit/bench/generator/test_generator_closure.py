"""The generator runs from a ConfigMap in an image with nothing but Python."""

import subprocess
import sys
from pathlib import Path

import llmd_oke
import pytest

COMPONENTS = Path(llmd_oke.__file__).parents[1]


@pytest.mark.parametrize(
    "module",
    [
        *("load.stages", "load.load", "load.texts", "load.waiting", "load.introductions"),
        *("records.lines", "records.failures", "proving.ours"),
    ],
)
def test_it_needs_the_standard_library_only(module):
    code = f"import sys; sys.path.insert(0, {str(COMPONENTS)!r}); import llmd_oke.bench.{module}"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
