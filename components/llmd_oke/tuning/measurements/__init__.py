"""Measured rows of single servers: published ones, which may be built upon, and what they say."""
