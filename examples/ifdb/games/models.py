"""Games, where their files are, and what can be played in the browser."""

from django.db import models


class Game(models.Model):
    """A game."""

    title = models.CharField(max_length=255)
    author = models.CharField(max_length=255, blank=True)
    description = models.TextField(blank=True)
    #: Written by the importer, so the importer may write it again.
    is_updateable = models.BooleanField(default=True)
    added = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("title",)

    def __str__(self):
        return self.title


class GameURL(models.Model):
    """A file or a page of a game, elsewhere; and our copy of it."""

    class Status(models.TextChoices):
        """What became of our copy."""

        NOT_CLONED = "not cloned"
        OK = "ok"
        BROKEN = "broken"

    game = models.ForeignKey(Game, on_delete=models.CASCADE, related_name="urls")
    original_url = models.URLField(max_length=2048)
    is_download = models.BooleanField(default=True)
    status = models.CharField(max_length=16, choices=Status, default=Status.NOT_CLONED)
    local_name = models.CharField(max_length=255, blank=True)
    file_size = models.PositiveBigIntegerField(null=True)
    #: Why there is no copy.
    fault = models.TextField(blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("game", "original_url"), name="one_of_a_url"),)

    def __str__(self):
        return self.original_url


class InterpretedGameUrl(models.Model):
    """A form of the file that the interpreter in the browser plays."""

    original = models.OneToOneField(GameURL, on_delete=models.CASCADE, related_name="interpreted")
    recoded_name = models.CharField(max_length=255)
    encoding = models.CharField(max_length=32)
    locations = models.PositiveIntegerField()
