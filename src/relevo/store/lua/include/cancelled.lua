-- The record of a job that is cancelled before it starts. It holds the body, to run it again; a body that is no JSON is
-- kept as bytes, for people.
local DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
local function base64(bytes)
  local out = {}
  for i = 1, #bytes, 3 do
    local a, b, c = string.byte(bytes, i, i + 2)
    local n = a * 65536 + (b or 0) * 256 + (c or 0)
    for k = 0, 3 do
      local at = math.floor(n / 64 ^ (3 - k)) % 64 + 1
      out[#out + 1] = (k == 2 and not b or k == 3 and not c) and '=' or string.sub(DIGITS, at, at)
    end
  end
  return table.concat(out)
end
local function is_json(text)
  if not pcall(cjson.decode, text) then return false end
  if not string.find(text, '[\128-\255]') then return true end
  local rest = string.gsub(text, '[\240-\244][\128-\191][\128-\191][\128-\191]', 'x')
  rest = string.gsub(rest, '[\224-\239][\128-\191][\128-\191]', 'x')
  return not string.find(string.gsub(rest, '[\194-\223][\128-\191]', 'x'), '[\128-\255]')
end
local function cancelled_record(body, told, from, reason, message)
  local target = string.match(body, '^{"t":"([^"\\%c]*)"') or ''
  local readable = is_json(body)
  if told == '' and message ~= '' then told = '{"attempts":[{"how":"cancelled","message":"' .. message .. '"}]}' end
  local _, runs = string.gsub(told, '"how":"', '')
  return '{"state":"cancelled","target":"' .. (readable and target or '') .. '","queue_from":"' .. from .. '","reason":"' .. reason
    .. '","ended_ms":' .. string.format('%d', now) .. ',"runs":' .. runs .. (told ~= '' and ',"story":' .. told or '')
    .. (readable and ',"body":' .. body or ',"unreadable":"' .. base64(body) .. '"') .. '}'
end
