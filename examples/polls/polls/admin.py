"""Questions with their choices in the admin."""

from django.contrib import admin

from polls.models import Choice, Question


class Choices(admin.TabularInline):
    """Below the question."""

    model = Choice


@admin.register(Question)
class QuestionAdmin(admin.ModelAdmin):
    """Questions."""

    list_display = ("text", "asked_by", "published")
    inlines = (Choices,)
