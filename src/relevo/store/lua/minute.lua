--[[ Keep the counters of a queue as they are in this minute, unless somebody did so before.
KEYS  stats      hash  counters
      minutes    hash  minute -> when, counters
ARGV  hour_ms    int   how long they live without a look
GIVES now ]]
-- @include now
-- @include minute
keep_minute()
return now
