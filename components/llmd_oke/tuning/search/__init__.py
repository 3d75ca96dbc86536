"""A question and all deployments that may answer it, scored in closed form and put in order."""
