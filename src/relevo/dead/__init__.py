"""Dead letters: jobs that were given up, with their history."""

from relevo.dead.groups import Group
from relevo.dead.letters import DeadLetters
from relevo.dead.moving import Imported
from relevo.dead.paging import DeadPage, DeadRow
from relevo.model.replay import Replay

__all__ = ["DeadLetters", "DeadPage", "DeadRow", "Group", "Imported", "Replay"]
