"""What an operator waits for on a full server: a million jobs that wait, as many scheduled, 100,000 dead letters."""
