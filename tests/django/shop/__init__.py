"""An installed app of the project."""
