"""An installed app whose tasks are Django's own."""
