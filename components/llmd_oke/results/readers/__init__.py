"""Readers of results, one module for each format; `read` finds the right one."""

from llmd_oke.results.readers.formats import FORMATS, Format, read, read_all

__all__ = ["FORMATS", "Format", "read", "read_all"]
