"""Components of a plan: the one place that turns a plan into their arguments."""

from llmd_oke.program.deployment import deploy, program

__all__ = ["deploy", "program"]
