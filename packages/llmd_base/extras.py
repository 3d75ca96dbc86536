"""Optional dependencies of this package (extras), and what is said where one is not installed."""

from collections.abc import Generator
from contextlib import contextmanager

from llmd_base.errors import KitError


@contextmanager
def extra(names: str, what: str) -> Generator[None]:
    """Name the extras that bring a package, where importing it fails inside this block.

    Args:
        names: the extras, with commas between them, such as `oci`.
        what: what needs the package, as a sentence begins: `A history in a bucket`.

    Raises:
        KitError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise KitError(f"{what} needs {error.name}, which is not installed.", f"Install llmd-oke[{names}].") from error
