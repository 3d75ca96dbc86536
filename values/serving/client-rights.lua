-- Lets clients use the models that they may, once the body is read. Before this text stand Models (names by clients' names,
-- each with true), Lists (for the same clients their models as text, for people), Entries (the same as /v1/models has them),
-- NameHeader, Namespace and Key (where the body's model is), and Route (what a route says of itself).

local find, match = string.find, string.match

local function missing(handle, client)
  local headers = handle:headers()
  local route = handle:metadata()
  local path = match(headers:get(":path"), "^[^?]*")
  if path == "/v1/models" and headers:get(":method") == "GET" then return "200", Entries[client][route:get(Route) or ""] end
  local served = route:get(Route)
  if not served and find(path, "^/v1/") then
    local said = handle:streamInfo():dynamicMetadata():get(Namespace)
    served = said and said[Key]
  end
  if served and not Models[client][served] then
    return "404", "The model doesn't exist, or the client may not use it. Its models are: " .. Lists[client] .. "."
  end
end

-- Envoy lets a request pass whose script fails; here it fails too.
function envoy_on_request(handle)
  local client = handle:headers():get(NameHeader)
  if not client or not Models[client] then return end
  local passed, status, text = pcall(missing, handle, client)
  if not passed then
    handle:logErr("client rights: " .. tostring(status))
    status, text = "500", "The client's rights could not be read."
  end
  if status then handle:respond({[":status"] = status, ["content-type"] = "application/json"}, text) end
end
