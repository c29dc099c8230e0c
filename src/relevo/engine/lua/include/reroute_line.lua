-- The line of jobs that wait for a worker of another build, see engine/include/rerouted.lua.
local function reroute_line(target, refusals) return parked_key('r:' .. target .. '\n' .. refusals) end
