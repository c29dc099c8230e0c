-- The record of a job that is cancelled before it starts. Its body, to run it again, stands behind the JSON, parted by a
-- sign that no JSON holds, and is not looked at: it may be large, or no JSON at all. `signature`: '' where none is needed.
local function cancelled_record(body, past, from, reason, message, signature)
  local target = string.match(body, '^{"t":"([^"\\%c\128-\255]*)"') or ''
  local _, runs = string.gsub(past, '"how":"', '')
  if past == '' and message ~= '' then past = '{"attempts":[{"how":"cancelled","message":"' .. message .. '"}]}' end
  return '{"state":"cancelled","target":"' .. target .. '","queue_from":"' .. from .. '","reason":"' .. reason
    .. '","ended_ms":' .. string.format('%d', now) .. ',"runs":' .. runs .. (signature ~= '' and ',"signature":"' .. signature .. '"' or '') .. (past ~= '' and ',"story":' .. past or '') .. '}\30' .. body
end
