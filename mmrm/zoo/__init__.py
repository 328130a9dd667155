"""Models by name, runs as models, and what goes with them: input, predictions, cards, a table of results."""
