-- An entity of a pool: its place is in placed:<state>, by the time it came there; its metadata in entity:<id>, each value
-- as JSON, and beside it what the pool itself knows: @state ('' once it left), @since, @retries.
local function enter(id, state)
  local text = string.format('%d', now)
  redis.call('ZADD', placed .. ':' .. state, text, id)
  redis.call('ZADD', states, 'NX', text, state)
  redis.call('ZADD', entities, text, id)
  redis.call('HSET', entity .. ':' .. id, '@state', state, '@since', text)
end
local function is_one_too_many(state, most) -- a state that would be new
  return not redis.call('ZSCORE', states, state) and redis.call('ZCARD', states) >= tonumber(most)
end
local function quit(id, state)
  redis.call('ZREM', placed .. ':' .. state, id)
  if redis.call('EXISTS', placed .. ':' .. state) == 0 then redis.call('ZREM', states, state) end
end
local function write_field(id, field, value) -- a value of '' takes the field away
  if value == '' then redis.call('HDEL', entity .. ':' .. id, field)
  else redis.call('HSET', entity .. ':' .. id, field, value) end
end
-- It is in no state any more: what is known of it ends.
local function let_end(id, data_ms)
  redis.call('ZREM', entities, id)
  local key = entity .. ':' .. id
  if redis.call('EXISTS', key) == 0 then return end
  redis.call('HSET', key, '@state', '', '@since', string.format('%d', now))
  if tonumber(data_ms) > 0 then redis.call('PEXPIRE', key, data_ms) else redis.call('DEL', key) end
end
-- Where it is, if that is `from` ('': wherever it is) since exactly `since` and for at least `older_ms` ('': however
-- long); else nil and where it is instead ('': nowhere). The sets are what counts, whatever the metadata says.
local function standing(id, from, since, older_ms)
  local state = from ~= '' and from or redis.call('HGET', entity .. ':' .. id, '@state') or ''
  local score = state ~= '' and redis.call('ZSCORE', placed .. ':' .. state, id)
  if score and (since == '' or tonumber(score) == tonumber(since)) and (older_ms == '' or now - score >= tonumber(older_ms)) then
    return state
  end
  if score then return nil, state end
  state = redis.call('HGET', entity .. ':' .. id, '@state') or ''
  return nil, state ~= '' and redis.call('ZSCORE', placed .. ':' .. state, id) and state or ''
end
