-- A server at its memory limit refuses a script whose FIRST write may grow memory; after a harmless first write the others
-- pass. Settling and handing out jobs frees memory and must go on, hence this empty removal.
redis.call('ZREM', running, '')
