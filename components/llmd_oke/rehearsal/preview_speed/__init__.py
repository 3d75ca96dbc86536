"""How long a preview takes, beside a program of the same size that is the engine's alone (`scripts/bench-preview`)."""
