"""Pages of the site."""

from django.contrib import admin
from django.http import HttpResponse
from django.urls import path

from core import views as core
from games import views as games

urlpatterns = [
    path("", games.index, name="index"),
    path("game/add/", games.add, name="add"),
    path("game/<int:id>/", games.show, name="game"),
    path("play/<int:id>/", games.play, name="play"),
    path("feeds/", core.feeds, name="feeds"),
    path("admin/", admin.site.urls),
    path("favicon.ico", lambda _: HttpResponse(status=204)),
]
