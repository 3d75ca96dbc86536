"""Path by which tests of experiments import `experiments_for_tests`, which lies beside this file."""
