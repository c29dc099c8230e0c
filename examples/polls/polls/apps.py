"""The polls."""

from django.apps import AppConfig


class PollsConfig(AppConfig):
    """The polls."""

    name = "polls"
