-- The metadata of an entity.
local function entity_key(owner) return entity .. ':' .. owner end
