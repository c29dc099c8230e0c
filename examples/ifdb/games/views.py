"""Pages of games."""

from django import forms
from django.conf import settings
from django.db import transaction
from django.shortcuts import get_object_or_404, redirect, render

from games.models import Game, InterpretedGameUrl
from games.tasks.uploads import clone_all


class GameForm(forms.Form):
    """A game of a visitor."""

    title = forms.CharField(max_length=255)
    author = forms.CharField(max_length=255, required=False)
    url = forms.URLField(label="Address of the file", max_length=2048, assume_scheme="https")


def index(request):
    """All games."""
    return render(request, "games/index.html", {"games": Game.objects.prefetch_related("urls__interpreted")})


def show(request, id):
    """One game, with its files."""
    return render(request, "games/game.html", {"game": get_object_or_404(Game, pk=id)})


def add(request):
    """Add a game; its file is cloned when the transaction has committed."""
    form = GameForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        with transaction.atomic():
            game = Game.objects.create(title=given["title"], author=given["author"], is_updateable=False)
            clone_all([game.urls.create(original_url=given["url"])])
        return redirect("game", game.pk)
    return render(request, "games/add.html", {"form": form})


def play(request, id):
    """The quest as the interpreter gets it."""
    one = get_object_or_404(InterpretedGameUrl, pk=id)
    text = (settings.RECODES_DIR / one.recoded_name).read_text("utf-8")
    return render(request, "games/play.html", {"one": one, "text": text})
