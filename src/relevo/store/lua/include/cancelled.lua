-- The record of a job that is cancelled before it starts. Its body, to run it again, stands behind the JSON, parted by a
-- sign that no JSON holds, and is not looked at: it may be large, or no JSON at all.
local function cancelled_record(body, told, from, reason, message)
  local target = string.match(body, '^{"t":"([^"\\%c\128-\255]*)"') or ''
  local _, runs = string.gsub(told, '"how":"', '')
  if told == '' and message ~= '' then told = '{"attempts":[{"how":"cancelled","message":"' .. message .. '"}]}' end
  return '{"state":"cancelled","target":"' .. target .. '","queue_from":"' .. from .. '","reason":"' .. reason
    .. '","ended_ms":' .. string.format('%d', now) .. ',"runs":' .. runs .. (told ~= '' and ',"story":' .. told or '') .. '}\30' .. body
end
