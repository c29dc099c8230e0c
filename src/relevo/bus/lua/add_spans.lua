--[[ Add spans of messages to the trace log, for queries by operation. Only the newest are kept.
KEYS  spans      stream  one entry per attempt
ARGV  most       int   entries kept, about
      live_ms    int   TTL of the log without new ones
                       then the entries, JSON each
GIVES how many there are ]]
for i = 3, #ARGV do redis.call('XADD', spans, 'MAXLEN', '~', most, '*', 's', ARGV[i]) end
redis.call('PEXPIRE', spans, live_ms)
return redis.call('XLEN', spans)
