"""The page of news."""

from django.shortcuts import render

from core.models import FeedCache


def feeds(request):
    """The newest items of all feeds."""
    return render(request, "core/feeds.html", {"items": FeedCache.objects.all()[:50]})
