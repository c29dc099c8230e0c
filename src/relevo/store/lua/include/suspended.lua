-- A schedule that is paused has a note 'since' or 'since until' among its ticks; after that time it is paused no more.
local function is_suspended(text)
  if not text then return false end
  local ends = string.match(text, ' (%d+)$')
  return not ends or tonumber(ends) > now
end
