"""Modules that all packages of the kit share: errors, progress, the table of metrics, and the cluster as a pod sees it."""
