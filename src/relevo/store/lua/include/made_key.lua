-- What was made on behalf of a conversation.
local function made_key(owner) return made .. ':' .. owner end
