"""Figures of results: self-contained SVG and HTML, and plots for a terminal."""
