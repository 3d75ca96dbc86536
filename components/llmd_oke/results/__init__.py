"""What was measured or predicted, as rows of one table: the schema, its files, and readers of other tools' results."""
