"""Benchmarks and their results as rows of one table: load generation, files, readers of other tools' files, comparison,
history, reports.
"""
