"""Modules that all packages share: errors, progress, the table of metrics, and the cluster as a pod sees it."""
