"""The stack's Pulumi program."""

import gc
import sys

gc.disable()  # nothing to collect in a program this short: 0.31 s of 2.4 s for a stack with a cluster (decision 0113)

import pulumi  # noqa: E402 - after the collector is told
from llmd_base.errors import KitError  # noqa: E402
from llmd_oke.program import program  # noqa: E402

sys.tracebacklimit = 10  # the SDK sends the engine the whole stack with each resource (decision 0113)
try:
    program()
except KitError as error:
    raise pulumi.RunError(str(error)) from None  # the kit's own words, without a traceback
finally:
    del sys.tracebacklimit
