"""Modules that all packages share: errors, progress, the table of metrics, and the Kubernetes client of programs in
pods.
"""
