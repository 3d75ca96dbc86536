"""What is benchmarked: where its parts are, what they are made of, and what they say of themselves."""
