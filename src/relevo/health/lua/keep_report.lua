--[[ Keep the last health report of an app, until the next one is long overdue.
KEYS  health     hash  status, checked_at, reasons, report
ARGV  live_ms    int   how long it is kept
      status     word  healthy, degraded or unhealthy
      at         int   when, ms
      reasons    text  sentences, a line each
      report     json  all of it
GIVES how many fields there are ]]
redis.call('HDEL', health, '') -- as in store/lua/include/afford.lua: health matters most on a full server
redis.call('HSET', health, 'status', status, 'checked_at', at, 'reasons', reasons, 'report', report)
redis.call('PEXPIRE', health, live_ms)
return redis.call('HLEN', health)
