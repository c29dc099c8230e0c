"""The tables."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Questions and choices."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Question",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("text", models.CharField(max_length=200)),
                ("asked_by", models.EmailField(max_length=254)),
                ("published", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="Choice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("text", models.CharField(max_length=200)),
                ("votes", models.IntegerField(default=0)),
                (
                    "question",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="polls.question"),
                ),
            ],
        ),
    )
