"""The kit's own set of questions as `values/` has it; apart from `items`, because pods ask it and have no `values/`."""

from functools import cache

from llmd_oke.bench.evals.items import BuiltinSet
from llmd_oke.catalogue.files import read_yaml, values_folder


@cache
def builtin_set() -> BuiltinSet:
    """The figures of `values/evals/builtin.yaml`."""
    return BuiltinSet.model_validate(read_yaml(values_folder() / "evals" / "builtin.yaml"))
