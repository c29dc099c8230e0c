"""Makes the table of the outbox."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """The table `relevo_outbox_job`."""

    initial = True
    dependencies: list[tuple[str, str]] = []  # noqa: RUF012
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="OutboxJob",
            fields=[
                ("id", models.CharField(max_length=20, primary_key=True, serialize=False)),
                ("app", models.CharField(max_length=200)),
                ("queue", models.CharField(max_length=200)),
                ("job", models.TextField()),
            ],
            options={
                "verbose_name": "job in the outbox",
                "verbose_name_plural": "jobs in the outbox",
                "db_table": "relevo_outbox_job",
            },
        ),
    ]
