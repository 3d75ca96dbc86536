"""The kit's program; what is this project's own lies in `stacks/` and `values/`."""

import pulumi
from llmd_base.errors import KitError
from llmd_oke.program import program

try:
    program()
except KitError as error:
    raise pulumi.RunError(str(error)) from None  # the kit's own words, without a traceback
