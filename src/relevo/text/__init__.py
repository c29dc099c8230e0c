"""Text from people and for people: names, durations and moments in time are parsed; secrets are masked."""
