"""The admin of games. The tasks have pages of their own there, those of relevo."""

from django.contrib import admin

from games.models import Game, GameURL
from games.tasks.uploads import clone_all


class GameURLInline(admin.TabularInline):
    """The files of a game."""

    model = GameURL
    extra = 0


@admin.register(Game)
class GameAdmin(admin.ModelAdmin):
    """Games."""

    list_display = ("title", "author", "added")
    search_fields = ("title", "author")
    inlines = (GameURLInline,)


@admin.register(GameURL)
class GameURLAdmin(admin.ModelAdmin):
    """Files of games."""

    list_display = ("original_url", "game", "status", "fault")
    list_filter = ("status",)
    actions = ("clone",)

    @admin.action(description="Clone again")
    def clone(self, request, queryset):
        """Enqueue a copy of each."""
        clone_all(queryset)
        self.message_user(request, f"{queryset.count()} files are cloned again")
