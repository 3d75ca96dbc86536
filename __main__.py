"""The stack's Pulumi program."""

import pulumi
from llmd_oke.errors import KitError
from llmd_oke.stack import program

try:
    program()
except KitError as error:
    raise pulumi.RunError(str(error)) from None  # the kit's own words, without a traceback
