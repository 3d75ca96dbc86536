-- Lets clients use the models that they may, and have so many requests under way at each, once the body is read. Before this
-- text stand Models (names by clients' names, each with true; those of all others by ""), Lists (for the same clients their models
-- as text, for people), Entries (the same as /v1/models has them), Most (requests under way at a model at this thread, of each
-- client that isn't in Counted, whose requests clusters count), NameHeader, Namespace and Key (where the body's model is),
-- and Route (what a route says of itself).

local find, match = string.find, string.match
local UnderWay = "llmd-oke.under-way"
local SweepMs = 100

-- Requests by number. Envoy tells no filter of its language that a client has gone, but lets go of the handle of its request.
local entries, handles, last, swept = {}, setmetatable({}, {__mode = "v"}), 0, 0
local under_way = {}

local function release(number)
  local counted = entries[number]
  if not counted then return end
  local left = under_way[counted] - 1
  entries[number], under_way[counted] = nil, left > 0 and left or nil
end

local function release_gone(now)
  if now - swept < SweepMs then return end
  swept = now
  collectgarbage()
  for number in pairs(entries) do
    if not handles[number] then release(number) end
  end
end

local function begin(handle, client, served)
  local counted = client .. "\n" .. served
  if (under_way[counted] or 0) >= Most then release_gone(handle:timestamp()) end
  if (under_way[counted] or 0) >= Most then
    return "429", "The client has as many requests under way at this model as it may have at a time."
  end
  last = last + 1
  entries[last], handles[last] = counted, handle
  under_way[counted] = (under_way[counted] or 0) + 1
  handle:streamInfo():dynamicMetadata():set(UnderWay, "entry", last)
end

local function decide(handle)
  local headers, route = handle:headers(), handle:metadata()
  local client = headers:get(NameHeader) or ""
  local rights = Models[client] and client or Models[""] and ""
  local path = match(headers:get(":path"), "^[^?]*")
  if path == "/v1/models" and headers:get(":method") == "GET" then
    if rights then return "200", Entries[rights][route:get(Route) or ""] end
    return
  end
  local served = route:get(Route)
  if not served and find(path, "^/v1/") then
    local said = handle:streamInfo():dynamicMetadata():get(Namespace)
    served = said and said[Key]
  end
  if not served then return end
  if rights and not Models[rights][served] then
    return "404", "The model doesn't exist, or the client may not use it. Its models are: " .. Lists[rights] .. "."
  end
  if Most and not Counted[client] then return begin(handle, client, served) end
end

-- Envoy lets a request pass whose script fails; here it fails too.
function envoy_on_request(handle)
  local passed, status, text = pcall(decide, handle)
  if not passed then
    handle:logErr("client rights: " .. tostring(status))
    status, text = "500", "The client's rights could not be read."
  end
  if status then handle:respond({[":status"] = status, ["content-type"] = "application/json"}, text) end
end

function envoy_on_response(handle)
  local counted = handle:streamInfo():dynamicMetadata():get(UnderWay)
  if not counted then return end
  for _ in handle:bodyChunks() do end
  release(math.floor(counted.entry))
end
