"""Programs of the bench that run in pods, and how what they found leaves the cluster."""
