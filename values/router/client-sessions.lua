-- Bounds what an endpoint picker keeps of each session. Its table stands before this text (Sessions, names of headers).

local Longest = 256

local function bound_sessions(handle)
  local headers = handle:headers()
  for i = 1, #Sessions do
    local id = headers:get(Sessions[i])
    if id and #id > Longest then headers:remove(Sessions[i]) end
  end
end
