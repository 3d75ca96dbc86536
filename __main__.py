"""The stack's Pulumi program."""

from llmd_oke.stack import program

program()
