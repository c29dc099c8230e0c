-- An entity of a pool: it is in placed:<state>, by the time it entered; its metadata is in entity:<id>, each value as JSON,
-- beside the pool's own fields: @state ('' once it left), @since, @retries.
local function enter(id, state)
  local text = string.format('%d', now)
  redis.call('ZADD', placed_key(state), text, id)
  redis.call('ZADD', states, 'NX', text, state)
  redis.call('ZADD', entities, text, id)
  redis.call('HSET', entity_key(id), '@state', state, '@since', text)
end
local function is_one_too_many(state, most) -- a state that would be new
  return not redis.call('ZSCORE', states, state) and redis.call('ZCARD', states) >= tonumber(most)
end
local function quit(id, state)
  redis.call('ZREM', placed_key(state), id)
  if redis.call('EXISTS', placed_key(state)) == 0 then redis.call('ZREM', states, state) end
end
local function write_field(id, field, value) -- '' removes the field
  if value == '' then redis.call('HDEL', entity_key(id), field)
  else redis.call('HSET', entity_key(id), field, value) end
end
-- It left the pool: its metadata expires.
local function let_end(id, data_ms)
  redis.call('ZREM', entities, id)
  local key = entity_key(id)
  if redis.call('EXISTS', key) == 0 then return end
  redis.call('HSET', key, '@state', '', '@since', string.format('%d', now))
  if tonumber(data_ms) > 0 then redis.call('PEXPIRE', key, data_ms) else redis.call('DEL', key) end
end
-- Its state, if that is `from` ('': any), entered at exactly `since` and at least `older_ms` ago ('': ignored); else nil and
-- its state instead ('': none). The sets decide, whatever the metadata says.
local function standing(id, from, since, older_ms)
  local state = from ~= '' and from or redis.call('HGET', entity_key(id), '@state') or ''
  local score = state ~= '' and redis.call('ZSCORE', placed_key(state), id)
  if score and (since == '' or tonumber(score) == tonumber(since)) and (older_ms == '' or now - score >= tonumber(older_ms)) then
    return state
  end
  if score then return nil, state end
  state = redis.call('HGET', entity_key(id), '@state') or ''
  return nil, state ~= '' and redis.call('ZSCORE', placed_key(state), id) and state or ''
end
