"""Questions, and the choices that people vote for."""

from django.db import models


class Question(models.Model):
    """A question."""

    text = models.CharField(max_length=200)
    asked_by = models.EmailField()
    published = models.DateTimeField(auto_now_add=True)

    def __str__(self):
        return self.text


class Choice(models.Model):
    """One of the answers."""

    question = models.ForeignKey(Question, on_delete=models.CASCADE)
    text = models.CharField(max_length=200)
    votes = models.IntegerField(default=0)

    def __str__(self):
        return self.text
