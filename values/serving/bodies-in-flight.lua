-- Bounds the bytes of requests whose answers have not begun: all of this thread's together, and those of one client. Before
-- this text stand MostBytes, ClientBytes, LargestBody, HoldSeconds and NameHeader. Envoy tells no filter of its language
-- that a client has gone, so that what such a client had sent counts for HoldSeconds from its beginning.

local floor, match = math.floor, string.match
local Namespace = "llmd-oke.held"

local queue, first, last = {}, 1, 0
local total, by_client = 0, {}

local function add(entry, bytes)
  entry.bytes = entry.bytes + bytes
  total = total + bytes
  local of_client = (by_client[entry.client] or 0) + bytes
  by_client[entry.client] = of_client > 0 and of_client or nil
end

local function forget_old(now)
  while first <= last do
    local entry = queue[first]
    if entry.bytes > 0 then
      if now - entry.began < HoldSeconds then return end
      add(entry, -entry.bytes)
    end
    queue[first] = nil
    first = first + 1
  end
end

local function count(handle)
  local headers = handle:headers()
  local now = os.time()
  forget_old(now)
  local length = tonumber(match(headers:get("content-length") or "", "^%d+$"))
  local method = headers:get(":method")
  local bytes = length or ((method == "GET" or method == "HEAD") and 0 or LargestBody)
  if bytes == 0 or bytes > LargestBody then return end
  local client = headers:get(NameHeader) or match(handle:streamInfo():downstreamRemoteAddress(), "^(.*):%d+$") or ""
  if total + bytes > MostBytes or (by_client[client] or 0) + bytes > ClientBytes then
    local whose = total + bytes > MostBytes and "All clients'" or "The client's"
    return nil, whose .. " requests whose answers have not begun are larger than what is held of them. A request without content-length counts as the largest until it is whole."
  end
  local entry = {client = client, began = now, bytes = 0}
  add(entry, bytes)
  last = last + 1
  queue[last] = entry
  handle:streamInfo():dynamicMetadata():set(Namespace, "entry", last)
  return not length and entry
end

-- Envoy lets a request pass whose script fails; here it fails too.
function envoy_on_request(handle)
  local passed, unknown, message = pcall(count, handle)
  if not passed then
    handle:logErr("bodies in flight: " .. tostring(unknown))
    handle:respond({[":status"] = "500"}, "The request could not be counted.")
  elseif message then
    handle:respond({[":status"] = "429"}, message)
  elseif unknown then
    local size = 0
    for chunk in handle:bodyChunks() do size = size + chunk:length() end
    if unknown.bytes > 0 then add(unknown, math.max(size, 1) - unknown.bytes) end
  end
end

function envoy_on_response(handle)
  local held = handle:streamInfo():dynamicMetadata():get(Namespace)
  local entry = held and queue[floor(held.entry)]
  if entry then add(entry, -entry.bytes) end
end
