"""Dead letters: jobs that were given up, with their history."""
