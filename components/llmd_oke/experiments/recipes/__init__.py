"""Recipes: which deployments are measured under which loads, and in which order."""
