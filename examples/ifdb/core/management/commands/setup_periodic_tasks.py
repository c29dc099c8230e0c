"""manage.py setup_periodic_tasks: what the site does by the clock. As often as you like: there is one of each."""

from django.core.management.base import BaseCommand

from core.feedfetcher import FetchFeeds
from core.taskqueue import task_queue
from games.tasks.game_importer import ImportGames


class Command(BaseCommand):
    """The command."""

    help = "Set up periodic tasks in the task queue"

    def handle(self, *args, **options):
        """Set them up."""
        # Set up ImportGames periodic task (every 6 hours)
        task_queue.enqueue(ImportGames, name="ImportGames", cron="0 */6 * * *", priority=50)
        # Set up FetchFeeds periodic task (every 30 minutes)
        task_queue.enqueue(FetchFeeds, name="FetchFeeds", cron="*/30 * * * *", priority=75)
        self.stdout.write("Periodic tasks set up successfully")
