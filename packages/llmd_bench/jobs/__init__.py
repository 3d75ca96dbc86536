"""Programs of Jobs that benchmark inside a cluster, one module for each."""
