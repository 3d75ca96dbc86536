"""What the tests of all rooms of experiments share lies beside this file, in `experiments_for_tests`."""
