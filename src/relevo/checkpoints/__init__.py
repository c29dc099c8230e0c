"""Checkpoints: a long job that was stopped goes on where it was.

A job that runs again starts its function from the top: nothing of a Python frame survives its process. What can survive
is what the function tells. A *step* is a call whose result is kept, so that the next run gets the result instead of
calling again. A *loop* keeps the position of the last item that was worked on, so that the next run asks for what comes
after it. Both are written to the hash `carried:<id>` beside the job, by the holder of its lease and by nobody else, and
end with the job.

At the end of an item, when the position is known, is also the best moment to stop. So a loop looks there whether its
worker is stopping, and ends the run with an `Interruption`: the job is handed back and has spent nothing.
"""

from relevo.checkpoints.keeping import Home, Interruption, Keeping, is_interruption
from relevo.checkpoints.loops import Iteration

__all__ = ["Home", "Interruption", "Iteration", "Keeping", "is_interruption"]
