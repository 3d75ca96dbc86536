"""Load as a program asks for it: waiting for a model, one load, or stages of it."""
