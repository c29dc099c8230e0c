"""The agent orchestrator: holds the sessions of people, and asks the other services on their behalf."""
