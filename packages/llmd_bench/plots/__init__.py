"""Charts of results as self-contained SVG and HTML, and plots for terminals."""
