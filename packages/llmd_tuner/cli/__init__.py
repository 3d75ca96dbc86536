"""Commands that measure what is deployed, compare results, and tune."""
