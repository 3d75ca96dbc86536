"""Service addresses and DNS names, in user space."""
