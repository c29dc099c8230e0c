-- All patterns that match a topic, as engine/topics.py defines them: each segment as it is or `*`, and `>` for one or more that
-- follow. There are few, since topics have few segments, and subscriptions need not be scanned.
local function patterns_of(topic)
  local found, heads = {}, { '' }
  for segment in string.gmatch(topic, '[^.]+') do
    local longer = {}
    for _, head in ipairs(heads) do
      found[#found + 1] = head .. '>'
      longer[#longer + 1] = head .. segment .. '.'
      longer[#longer + 1] = head .. '*.'
    end
    heads = longer
  end
  for _, head in ipairs(heads) do found[#found + 1] = string.sub(head, 1, -2) end
  return found
end
