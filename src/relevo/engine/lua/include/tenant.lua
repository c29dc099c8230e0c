-- The tenant of a job, in its body `g`, as limits name it ('g:acme'), and its weight. Nothing for a job without one, and for
-- an unreadable body.
local function tenant_of(body)
  if not string.find(body, '"g"', 1, true) then return nil end
  -- As our own clients write it: before the arguments, which may hold anything. All other bodies are parsed as a whole.
  local tenant, at = string.match(body, '^{"t":"[^"\\]*","g":"([^"\\]*)"()')
  if not tenant then tenant, at = string.match(body, '^{"t":"[^"\\]*","p":%d+,"g":"([^"\\]*)"()') end
  local weight
  if tenant then
    weight = tonumber(string.match(body, '^,"w":([%d.]+)', at))
  else
    local is_json, read = pcall(cjson.decode, body)
    if is_json and type(read) == 'table' and type(read.g) == 'string' then tenant, weight = read.g, tonumber(read.w) end
  end
  if not tenant or tenant == '' then return nil end
  if not (weight and weight >= 0.01 and weight <= 64) then weight = 1 end
  return 'g:' .. tenant, weight
end
-- The task of a job, as limits name it ('t:shop.charge').
local function task_of(body)
  local task = string.match(body, '^{"t":"([^"\\]+)"')
  if not task then
    local is_json, read = pcall(cjson.decode, body)
    task = is_json and type(read) == 'table' and type(read.t) == 'string' and read.t ~= '' and read.t
  end
  return task and 't:' .. task
end
