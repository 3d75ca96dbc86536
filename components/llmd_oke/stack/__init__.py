"""From a plan to components: the one place that turns config into component arguments."""

from llmd_oke.stack.deployment import deploy, program

__all__ = ["deploy", "program"]
