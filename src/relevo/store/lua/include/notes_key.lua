-- The progress and logs of a job.
local function notes_key(owner) return notes .. ':' .. owner end
