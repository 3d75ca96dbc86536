"""The stack's Pulumi program."""

import gc

gc.disable()  # there is nothing to collect in a program this short, and loading OCI's classes takes a third less

import pulumi  # noqa: E402 - after the collector is told
from llmd_base.errors import KitError  # noqa: E402
from llmd_oke.program import program  # noqa: E402

try:
    program()
except KitError as error:
    raise pulumi.RunError(str(error)) from None  # the kit's own words, without a traceback
