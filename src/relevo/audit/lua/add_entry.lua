--[[ Add an operator's action to the audit log. Only the newest entries are kept.
KEYS  audit      stream  one entry per action
ARGV  most       int   entries kept, about
      live_ms    int   TTL of the log without new entries
      deed       json  who did what
GIVES how many there are ]]
redis.call('PEXPIRE', audit, live_ms) -- first, as in store/lua/include/afford.lua: actions on a full server are logged, too
redis.call('XADD', audit, 'MAXLEN', '~', most, '*', 'd', deed)
redis.call('PEXPIRE', audit, live_ms)
return redis.call('XLEN', audit)
