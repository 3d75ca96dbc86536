"""The real Envoy, asked by programs of this folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from llmd_rehearsal import namespaces
from llmd_rehearsal.programs import locate

LIMIT_S = 300


@pytest.fixture(scope="session")
def envoy() -> Path:
    """The real Envoy; tests skip without it."""
    program = locate("envoy")
    if program is None:
        pytest.skip("there is no `envoy` in LLMD_OKE_PROGRAMS, in the cache or on PATH")
    return program.path


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, envoy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Observations of the module's `PROGRAM`, the first process of a network namespace, beside the real Envoy."""
    name: str = cast("Any", request).module.PROGRAM
    program = Path(__file__).with_name(name)
    log = tmp_path_factory.mktemp(program.stem) / "envoy.log"
    argv = namespaces.create_command([sys.executable, str(program), str(envoy)], user_namespace=os.geteuid() != 0)
    with log.open("w") as errors:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=LIMIT_S, check=False)
    if "unshare" in log.read_text():
        pytest.skip(f"no namespaces on this machine: {log.read_text().strip()}")
    assert done.returncode == 0, log.read_text()
    return json.loads(done.stdout)
