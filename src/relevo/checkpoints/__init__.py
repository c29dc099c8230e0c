"""Checkpoints: a long job that was stopped continues where it was.

A job that runs again starts its function from the top. A *step* is a call whose result is stored, so that the next run
gets the result instead of calling again. A *loop* stores the position of the last finished item, so that the next run
continues after it. Both are stored in the hash `carried:<id>` beside the job; only the holder of the job's lease can
write it, and it is removed with the job.

The end of an item, when the position is known, is also the best time to stop. So a loop checks there whether its
worker is stopping, and ends the run with an `Interruption`: the job is handed back without spending an attempt.
"""
