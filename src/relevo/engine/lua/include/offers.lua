-- What workers offer, stored once for all workers of one build (`offers`, see engine/register_offers.lua), and which lines of jobs that other
-- workers could not take (see engine/include/rerouted.lua) a worker may take from.
local SIGNATURE = 10 -- hexadecimal digits
local offer_texts = {}
local function offer_of(build)
  if not build then return '' end
  local text = offer_texts[build]
  if not text then
    text = redis.call('HGET', offers, '%' .. build) or ''
    offer_texts[build] = text
  end
  return text
end
local function takes(build, target, refusals)
  local text, head = offer_of(build), '\n' .. target .. '='
  local _, at = string.find(text, head, 1, true)
  return at and not string.find(refusals, string.sub(text, at + 1, at + SIGNATURE), 1, true)
end
-- Lines that a worker may take from, as target, refusals, ...
local function lines_for(who)
  local targets, signatures, found = {}, {}, {}
  for target, signature in string.gmatch(offer_of(redis.call('HGET', offers, '#' .. who)), '\n([^\n]+)=(%x+)') do
    targets[#targets + 1], signatures[#signatures + 1] = target, signature
  end
  for from = 1, #targets, 1000 do
    for i, lines_of in ipairs(redis.call('HMGET', sought, unpack(targets, from, math.min(from + 999, #targets)))) do
      for refusals in string.gmatch(lines_of or '', '%S+') do
        if not string.find(refusals, signatures[from + i - 1], 1, true) then
          found[#found + 1], found[#found + 2] = targets[from + i - 1], refusals
        end
      end
    end
  end
  return found
end
