-- A paused schedule has a note 'since' or 'since until' among its ticks; after that time it is no longer paused.
local function is_suspended(text)
  if not text then return false end
  local ends = string.match(text, ' (%d+)$')
  return not ends or tonumber(ends) > now
end
