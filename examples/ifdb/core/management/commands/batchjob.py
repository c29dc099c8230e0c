"""manage.py batchjob NAME: upkeep by hand. These run here and now, not in the queue."""

from django.core.management.base import BaseCommand
from relevo.django.maintenance import RetryFailedJobs, TaskQueueCleanup

from games.tasks.game_importer import ForceReimport, ImportForceUpdateUrls

JOBS = {job.__name__: job for job in (ForceReimport, ImportForceUpdateUrls, TaskQueueCleanup, RetryFailedJobs)}


class Command(BaseCommand):
    """The command."""

    help = "Run a job of upkeep"

    def add_arguments(self, parser):
        """Its argument."""
        parser.add_argument("name", choices=sorted(JOBS))

    def handle(self, *args, name, **options):
        """Run it."""
        self.stdout.write(f"{name}: {JOBS[name]()}")
