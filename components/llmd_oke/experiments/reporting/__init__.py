"""What a run found, as tables and plots."""
