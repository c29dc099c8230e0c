"""Where attempts run: on the event loop, in threads, or in child processes."""
