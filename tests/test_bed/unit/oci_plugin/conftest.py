"""A simulated region for each test."""

import pytest
from oci_region import Region


@pytest.fixture
def region() -> Region:
    return Region()
