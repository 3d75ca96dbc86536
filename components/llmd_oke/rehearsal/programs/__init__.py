"""The programs that a rehearsal runs: found on this machine, or built from `tools/` and kept in the user's cache.

`ensure` is what most callers want, `locate` only looks, `module_folder` has the charts and CRDs of a Go module.
"""

from llmd_oke.rehearsal.programs.ensuring import ensure, obtainable
from llmd_oke.rehearsal.programs.finding import Program, locate
from llmd_oke.rehearsal.programs.modules import module_folder

__all__ = ["Program", "ensure", "locate", "module_folder", "obtainable"]
