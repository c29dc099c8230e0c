-- What is kept under an id that is in no set: no turn will find it, and no settlement will remove it. An outbox message is in
-- `errands`; an open workflow is in no set, but its bag has life = open.
local KEPT = { jobs, names, claims, story, groups, waiters, holding, letters }
local NAMES, HOLDING = 2, 7
local SETS = { ready, scheduled, running, waiting, errands }
-- How many bytes are kept under an id (and a name that it holds); nil: nothing is kept, or the id is in use.
local function remains(id, name)
  for _, set in ipairs(SETS) do
    if redis.call('ZSCORE', set, id) then return nil end
  end
  if redis.call('HGET', carried_key(id), 'life') == 'open' then return nil end
  local size
  for i, key in ipairs(KEPT) do
    local text
    if i ~= NAMES then text = redis.call('HGET', key, id)
    elseif name ~= '' and redis.call('HGET', names, name) == id then text = name .. id end
    if text then size = (size or 0) + #text end
  end
  return size
end
