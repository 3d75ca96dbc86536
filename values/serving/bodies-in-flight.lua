-- Bounds the bytes of requests whose answers have not begun: all of this thread's together, and those of one client, which may
-- be ClientShare of what the others leave. Before this text stand MostBytes, ClientShare, LargestBody, SmallBody and NameHeader.

local floor, match = math.floor, string.match
local Namespace = "llmd-oke.held"
local SweepMs = 100

-- Requests by number. Envoy tells no filter of its language that a client has gone, but lets go of the handle of its request.
local entries, handles, last, swept = {}, setmetatable({}, {__mode = "v"}), 0, 0
local total, by_client = 0, {}

local function add(entry, bytes)
  entry.bytes = entry.bytes + bytes
  total = total + bytes
  local of_client = (by_client[entry.client] or 0) + bytes
  by_client[entry.client] = of_client > 0 and of_client or nil
end

local function release(number)
  local entry = entries[number]
  if entry then add(entry, -entry.bytes) end
  entries[number] = nil
end

local function release_gone(now)
  if now - swept < SweepMs then return end
  swept = now
  collectgarbage()
  for number in pairs(entries) do
    if not handles[number] then release(number) end
  end
end

local function fits(client, bytes)
  local own = by_client[client] or 0
  return own + bytes <= (MostBytes - (total - own)) * ClientShare
end

-- Answers the request's number, and whether it takes no body, where its size is not known yet; or words and a status.
local function count(handle)
  local headers = handle:headers()
  local length = tonumber(match(headers:get("content-length") or "", "^%d+$"))
  local method = headers:get(":method")
  local bodiless = method == "GET" or method == "HEAD"
  local bytes = length or (bodiless and SmallBody or LargestBody)
  if bytes == 0 then return end
  if bytes > LargestBody then return nil, "The request is too large.", "413" end
  if bodiless and bytes > SmallBody then return nil, "This path takes no body.", "400" end
  local client = headers:get(NameHeader) or match(handle:streamInfo():downstreamRemoteAddress(), "^(.*):%d+$") or ""
  if not fits(client, bytes) then release_gone(handle:timestamp()) end
  if not fits(client, bytes) then
    return nil, "The client's requests whose answers have not begun are larger than what others leave to it. A request without content-length counts as the largest until it is whole.", "429"
  end
  last = last + 1
  entries[last], handles[last] = {client = client, bytes = 0}, handle
  add(entries[last], bytes)
  handle:streamInfo():dynamicMetadata():set(Namespace, "entry", last)
  return not length and last, bodiless
end

-- Where the request is whole, its size takes the place of the largest. A body where none is due is held back, and refused by
-- Envoy beyond what it holds of a connection.
local function settle(handle, number, bodiless)
  local size = 0
  if bodiless then
    handle:body()
  else
    for chunk in handle:bodyChunks() do size = size + chunk:length() end
  end
  local entry = entries[number]
  if entry then add(entry, size - entry.bytes) end
end

-- Envoy lets a request pass whose script fails; here it fails too.
function envoy_on_request(handle)
  local passed, number, message, status = pcall(count, handle)
  if not passed then
    handle:logErr("bodies in flight: " .. tostring(number))
    handle:respond({[":status"] = "500"}, "The request could not be counted.")
  elseif status then
    handle:respond({[":status"] = status}, message)
  elseif number then
    settle(handle, number, message)
  end
end

function envoy_on_response(handle)
  local held = handle:streamInfo():dynamicMetadata():get(Namespace)
  if held then release(floor(held.entry)) end
end
