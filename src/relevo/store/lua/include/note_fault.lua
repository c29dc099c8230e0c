-- Note what another program wrote in place of ours, for log and health. The note itself may fail: `server` ends no script.
local server = redis.pcall
local function note_fault(key, field, text)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local tag, name = string.match(key, '^({[^}]*}:)(.*)$')
  local fault, book = string.format('%d ', now) .. text, tag .. 'faults'
  name = string.sub(name .. field, 1, 200)
  faults_now = faults_now or {}
  faults_now[#faults_now + 1], faults_now[#faults_now + 2] = name, fault
  local known = server('HLEN', book)
  if type(known) == 'table' then server('UNLINK', book) elseif known >= 100 then return end
  server('HSET', book, name, fault)
  server('PEXPIRE', book, '604800000')
end
