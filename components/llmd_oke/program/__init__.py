"""From a plan to components: the one place that turns it into their arguments."""

from llmd_oke.program.deployment import deploy, program

__all__ = ["deploy", "program"]
