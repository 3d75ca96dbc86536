"""x."""
SIMULATED=()
