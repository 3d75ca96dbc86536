"""Lets the tests in folders below import `results_rows`: pytest puts the folder of a conftest on the path."""
