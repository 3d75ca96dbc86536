"""Declaration of a plan's components: the only package that converts a plan into the components' arguments."""

from llmd_oke.program.deployment import deploy, program

__all__ = ["deploy", "program"]
