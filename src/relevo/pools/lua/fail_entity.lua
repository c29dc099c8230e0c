--[[ Give an entity up: it leaves its state and becomes a dead letter with all its metadata, in the structure that queues use
for theirs.
KEYS  entities states placed entity stats waiters errands letters ended done dead alike kinds notes
ARGV  keep_ms    int   how long the counters live without traffic
      done_max   int   unused here
      dead_max   int   dead letters kept
      id         text  the entity
      from       word  the state it must be in; '': any
      since      int   when it must have entered that state; '': any time
      older_ms   int   how long it must be there, for the purge; '': ignored
      letter     id    of the dead letter
      ttl_ms     int   TTL of the dead letter
      data_ms    int   TTL of its metadata
      pool       json  the pool's name
      target     json  target of the dead letter
      traits     json  fields for search and error groups, without braces
      reason     json  why
      attempt    json  what went wrong, without its closing brace
      fields     int   fields an entity may have
                       then metadata that changes: field, JSON ('': the field goes), …
GIVES 1 it is a dead letter, 0 it is not in that state, -3 it would have too many fields; and its state ('': none) ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/alike_key
-- @include store/placed_key
-- @include store/entity_key
-- @include store/now
-- @include engine/tally
-- @include pools/entity
-- @include pools/count_fields
-- @include engine/end_job
local state, elsewhere = standing(id, from, since, older_ms)
if not state then return { 0, elsewhere } end
if is_too_much(id, 17, fields) then return { -3, state } end
-- Other programs may write metadata, too: the dead letter must be valid JSON all the same.
local json = cjson.new() -- a separate instance: its number settings must not affect others
json.decode_invalid_numbers(false)
local function is_whole(part) -- one character of UTF-8: its first byte and its continuation bytes
  local first, second = string.byte(part, 1, 2)
  if #part == 2 then return first >= 0xC2 and first <= 0xDF end
  if #part == 3 then return first == 0xE0 and second >= 0xA0 or first == 0xED and second <= 0x9F or first > 0xE0 and first < 0xF0 and first ~= 0xED end
  return #part == 4 and (first == 0xF0 and second >= 0x90 or first == 0xF4 and second <= 0x8F or first > 0xF0 and first < 0xF4)
end
local function as_text(bytes)
  return (string.gsub(bytes, '[\128-\255][\128-\191]*', function(part) return is_whole(part) and part or '\239\191\189' end))
end
local function as_json(bytes)
  local text = as_text(bytes)
  local is_json, found = pcall(json.decode, '[' .. text .. ']')
  return is_json and #found == 1 and text or cjson.encode(text)
end
local came = redis.call('ZSCORE', placed_key(state), id)
quit(id, state)
for i = 17, #ARGV, 2 do write_field(id, ARGV[i], ARGV[i + 1]) end
local known, metadata, retries = redis.call('HGETALL', entity_key(id)), {}, '0'
for i = 1, #known, 2 do
  if known[i] == '@retries' then retries = known[i + 1]
  elseif string.sub(known[i], 1, 1) ~= '@' then metadata[#metadata + 1] = cjson.encode(as_text(known[i])) .. ':' .. as_json(known[i + 1]) end
end
local at = string.format('%d', now)
file(dead, 'dead', letter, '{"state":"dead","target":' .. target .. ',' .. traits .. ',"queue_from":"' .. state .. '","reason":' .. reason .. ',"started_ms":' .. came
  .. ',"ended_ms":' .. at .. ',"runs":' .. retries .. ',"story":{"attempts":[' .. attempt .. ',"started_ms":' .. came .. ',"ended_ms":' .. at
  .. '}]},"body":{"entity":' .. cjson.encode(id) .. ',"pool":' .. pool .. ',"metadata":{' .. table.concat(metadata, ',') .. '}}}', tonumber(ttl_ms), '0')
let_end(id, data_ms)
tally('dead', 1)
if older_ms ~= '' then tally('purged_' .. state, 1) end
return { 1, '' }
