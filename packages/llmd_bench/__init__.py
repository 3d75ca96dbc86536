"""Results that were measured or predicted, as rows of one table: files, readers of other tools, comparison, history,
reports.
"""
