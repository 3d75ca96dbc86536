"""The smoke benchmark: what is asked, how it is found out, and whether it is enough."""
