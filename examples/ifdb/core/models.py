"""News of the community."""

from django.db import models


class FeedCache(models.Model):
    """An item of a feed, once."""

    feed_id = models.CharField(max_length=32, db_index=True)
    item_id = models.CharField(max_length=512)
    date_published = models.DateTimeField()
    date_discovered = models.DateTimeField(auto_now_add=True)
    title = models.TextField()
    authors = models.CharField(max_length=255, blank=True)
    url = models.URLField(max_length=2048)

    class Meta:
        ordering = ("-date_published",)
        constraints = (models.UniqueConstraint(fields=("feed_id", "item_id"), name="one_of_an_item"),)

    def __str__(self):
        return self.title
