"""What a benchmark found, for people, for other tools, and for the table of results."""
