-- Whether a topic is one of those that a pattern stands for, as model/topics.py decides it: `*` is one segment, `>` at
-- the end all the rest, at least one. Pattern and topic hold only letters, digits, `_`, `-`, dots and these wildcards.
local MEANS = { ['-'] = '%-', ['.'] = '%.', ['*'] = '[^.]+', ['>'] = '.+' }
local function matches(pattern, topic)
  if pattern == topic then return true end
  if not string.find(pattern, '[*>]') then return false end
  return string.find(topic, '^' .. string.gsub(pattern, '[%-.*>]', MEANS) .. '$') ~= nil
end
