"""What the tools do: command line, checks before a run, launching."""
