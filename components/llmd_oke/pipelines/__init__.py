"""Continuous integration of stacks: changes in pull requests, promotion of merges, and nightly checks of upstream
projects.
"""
