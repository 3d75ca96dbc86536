"""Tests of the tuner, by room; what they share is in `tuning_for_tests`."""
