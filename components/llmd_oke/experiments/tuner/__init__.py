"""The tuner's own measurements: single servers that it is fitted to, and forecasts held against what was seen."""
