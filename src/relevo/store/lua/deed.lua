--[[ Write down what an operator did. Only the newest deeds are kept.
KEYS  audit      stream  one entry per deed
ARGV  most       int   entries kept, about
      live_ms    int   how long they live without new ones
      deed       json  who did what
GIVES how many there are ]]
redis.call('PEXPIRE', audit, live_ms) -- first, as in include/afford.lua: what is done to a full server is written down, too
redis.call('XADD', audit, 'MAXLEN', '~', most, '*', 'd', deed)
redis.call('PEXPIRE', audit, live_ms)
return redis.call('XLEN', audit)
