"""A run of a recipe: what it takes, its folder, and its rounds of deploying, measuring and tearing down."""
