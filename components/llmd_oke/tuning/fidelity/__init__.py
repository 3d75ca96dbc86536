"""How near simulated measurements are to real ones under the same loads."""
