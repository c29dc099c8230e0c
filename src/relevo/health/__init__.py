"""Whether an app is healthy, and why not."""
