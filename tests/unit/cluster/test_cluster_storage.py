"""The shared file system: arguments that are refused. Golden files have what is created."""

from typing import Any, cast

import pytest
from llmd_base.errors import KitError
from llmd_oke.cluster.storage import Storage, StorageArgs
from llmd_oke.testing import declared


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"kind": "file-storage", "compartment_id": "c"}, "without availability_domain, subnet_id, client_cidr"),
        ({"kind": "tape", "compartment_id": "c", "availability_domain": "a", "subnet_id": "s"}, "'tape' is no kind"),
    ],
    ids=["missing arguments", "unknown kind"],
)
def test_a_file_system_with_missing_arguments_or_of_an_unknown_kind_is_refused(args: dict[str, Any], said: str):
    with pytest.raises(KitError, match=said):
        declared(lambda: Storage("models", cast("StorageArgs", args)))
