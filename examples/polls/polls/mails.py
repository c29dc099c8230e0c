"""What the site writes to those who ask."""

from django.core.mail import send_mail

from polls.models import Choice


def tell_author(choice_id):
    """Tell who asked that there is one more vote."""
    choice = Choice.objects.select_related("question").get(pk=choice_id)
    question = choice.question
    send_mail(f"A vote on: {question}", f"{choice}: {choice.votes}", "polls@example.com", [question.asked_by])
