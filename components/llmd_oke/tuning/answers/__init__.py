"""What a search comes to: a ranking, how sure it is, and the ways to see it and to act on it."""
