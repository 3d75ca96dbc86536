"""The command `llmd-oke`: one thin module for each group of commands."""
