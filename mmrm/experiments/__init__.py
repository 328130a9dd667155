"""Many runs: side by side, resumable, each with its record."""
