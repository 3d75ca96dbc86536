"""A cluster on one machine: programs, control plane, nodes and pods, stand-in plug-ins, simulated vLLM."""
