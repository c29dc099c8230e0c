"""The pages of the polls."""

from django.db import transaction
from django.db.models import F
from django.http import HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from polls.mails import tell_author
from polls.models import Choice, Question


def index(request):
    """The newest questions."""
    return render(request, "polls/index.html", {"questions": Question.objects.order_by("-published")[:5]})


def detail(request, question_id, error=""):
    """A question, to vote on."""
    question = get_object_or_404(Question, pk=question_id)
    return render(request, "polls/detail.html", {"question": question, "error": error})


def results(request, question_id):
    """How many votes each choice has."""
    return render(request, "polls/results.html", {"question": get_object_or_404(Question, pk=question_id)})


def vote(request, question_id):
    """Count a vote, and write to who asked: the voter waits for the mail."""
    question = get_object_or_404(Question, pk=question_id)
    try:
        choice = question.choice_set.get(pk=request.POST["choice"])
    except (KeyError, Choice.DoesNotExist):
        return detail(request, question_id, "You did not choose.")
    with transaction.atomic():
        Choice.objects.filter(pk=choice.pk).update(votes=F("votes") + 1)
        tell_author(choice.pk)
    return HttpResponseRedirect(reverse("polls:results", args=(question.pk,)))
