"""The admin of news."""

from django.contrib import admin

from core.models import FeedCache


@admin.register(FeedCache)
class FeedCacheAdmin(admin.ModelAdmin):
    """Items of feeds."""

    list_display = ("title", "feed_id", "date_published")
    list_filter = ("feed_id",)
    search_fields = ("title",)
