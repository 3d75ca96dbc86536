-- Writes a client's priority into the header that routers read, where it has one. Its tables stand before this text (Priorities by
-- client, NameHeader, PriorityHeader).

local function prioritize(handle)
  local headers = handle:headers()
  local priority = Priorities[headers:get(NameHeader) or ""]
  if priority then headers:replace(PriorityHeader, priority) end
end

-- Envoy lets a request pass whose script fails; here it fails too.
function envoy_on_request(handle)
  local passed, problem = pcall(prioritize, handle)
  if passed then return end
  handle:logErr("client priorities: " .. tostring(problem))
  handle:respond({[":status"] = "500"}, "The request's priority could not be said.")
end
