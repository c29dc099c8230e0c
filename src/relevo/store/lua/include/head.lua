-- The head of a record: what is short and comes first, for all that need not know its story and its body.
local HEAD = 9000 -- bytes in which a head ends, but for edges beyond counting
-- A record without what is long and comes last. JSON again; '' where there is none.
local function head_of(record)
  local text, is_whole = string.sub(record, 1, HEAD), false
  for _, mark in ipairs({ ',"story":', ',"body":', ',"unreadable":', '}\30' }) do -- inside of texts they would be escaped
    local at = string.find(text, mark, 1, true)
    if at then text, is_whole = string.sub(text, 1, at - 1), true end
  end
  if is_whole then return text .. '}' end
  return #text < HEAD and string.sub(text, -1) == '}' and text or ''
end
local function kind_of(head) return string.match(head, '"fingerprint":"(%x+)"') end
