"""A stand-in in this process."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from llmd_rehearsal.oci_plugin.server import start
from llmd_rehearsal.plugin_protocol import Stub


@pytest.fixture(scope="module")
def stub() -> Iterator[Any]:
    server = start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Stub(channel)
    server.stop()
