"""Errors for optional dependencies (extras of the package `llmd-oke`) that are not installed."""

from collections.abc import Generator
from contextlib import contextmanager

from llmd_base.errors import KitError


@contextmanager
def extra(names: str, what: str) -> Generator[None]:
    """Turn a failed import inside the `with` block into an error that names the extras to install.

    Args:
        names: the extras, separated by commas, such as `oci`.
        what: feature that needs the package, as the beginning of the error's sentence: `A history in a bucket`.

    Raises:
        KitError: the imported package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise KitError(f"{what} needs {error.name}, which is not installed.", f"Install llmd-oke[{names}].") from error
