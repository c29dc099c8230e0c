-- The head of a record: what is short and comes first, for all that need not know its story and its body.
local HEAD = 9000 -- bytes in which a head ends, but for edges beyond counting
-- A record without what is long and comes last. JSON again; '' where there is none.
local MARKS = { ',"story":', ',"body":', ',"unreadable":', '}\30' } -- inside of texts they would be escaped
local function head_of(record)
  local text, is_whole = string.sub(record, 1, HEAD), false
  for _, mark in ipairs(MARKS) do
    local at = string.find(text, mark, 1, true)
    if at then text, is_whole = string.sub(text, 1, at - 1), true end
  end
  if is_whole then return text .. '}' end
  return #text < HEAD and string.sub(text, -1) == '}' and text or ''
end
-- Found without the head, since records are long and a fingerprint comes early in them.
local function kind_of(record)
  local at = string.find(record, '"fingerprint":"', 1, true)
  if not at or at > HEAD then return nil end
  local before = string.sub(record, 1, at)
  for _, mark in ipairs(MARKS) do if string.find(before, mark, 1, true) then return nil end end
  return string.match(record, '^(%x+)"', at + 15)
end
