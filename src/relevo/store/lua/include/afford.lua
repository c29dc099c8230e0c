-- A server at its memory limit refuses a script whose FIRST write may grow memory, and lets the rest pass once a
-- harmless write was made. Ending and handing out work frees memory, so it must go on: hence this empty removal.
redis.call('ZREM', running, '')
