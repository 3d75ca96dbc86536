"""Accuracy of a deployment: sets of questions, their grading, floors, and comparison with a baseline."""
