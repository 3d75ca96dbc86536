"""A simulated region for each test."""

import pytest
from oci_region import Parts, Region


@pytest.fixture
def region() -> Region:
    return Region()


@pytest.fixture
def parts(region: Region) -> Parts:
    """A cluster and a private subnet of its network."""
    vcn = region.vcn()
    return region.cluster(vcn), region.subnet(vcn, "10.0.0.0/19", prohibitPublicIpOnVnic=True)
