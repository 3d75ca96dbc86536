"""What a program loads while the engine starts."""

import sys

from created_cluster import created
from llmd_oke.rehearsal.rehearsal import CREATED_CLUSTER_MODULES
from llmd_oke.testing import render


def test_modules_that_are_loaded_beforehand_are_those_that_a_created_cluster_needs():
    render(created())
    assert set(CREATED_CLUSTER_MODULES) <= sys.modules.keys()
