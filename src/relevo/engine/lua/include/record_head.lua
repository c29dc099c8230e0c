-- The head of a record: its short fields, which come first, for readers that do not need its story and body.
local HEAD = 9000 -- bytes in which a head ends, unless there are very many edges
-- A record without the long fields at its end. Valid JSON; '' if there is none.
local MARKS = { ',"story":', ',"body":', ',"unreadable":', '}\30' } -- inside strings they would be escaped
local function head_of(record)
  local text, is_whole = string.sub(record, 1, HEAD), false
  for _, mark in ipairs(MARKS) do
    local at = string.find(text, mark, 1, true)
    if at then text, is_whole = string.sub(text, 1, at - 1), true end
  end
  if is_whole then return text .. '}' end
  return #text < HEAD and string.sub(text, -1) == '}' and text or ''
end
-- Searched without parsing the head, since records are long and the fingerprint comes early.
local function kind_of(record)
  local at = string.find(record, '"fingerprint":"', 1, true)
  if not at or at > HEAD then return nil end
  local before = string.sub(record, 1, at)
  for _, mark in ipairs(MARKS) do if string.find(before, mark, 1, true) then return nil end end
  return string.match(record, '^(%x+)"', at + 15)
end
