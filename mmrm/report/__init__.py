"""The page of runs and the tables, with the published numbers."""
