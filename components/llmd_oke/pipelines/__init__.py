"""Continuous integration of stacks: changes of pull requests, promotion of merges, and news of nights."""
