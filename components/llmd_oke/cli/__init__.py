"""The command `llmd-oke`: one module for each group of commands, thin."""
