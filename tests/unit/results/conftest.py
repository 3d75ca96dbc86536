"""Path by which tests in folders below import `results_rows`: pytest adds a conftest's folder to it."""
