-- Tells clients by the SHA-256 of their keys. Before this text stand sha256.lua, Clients (names by digest), NameHeader, and
-- RefusalsPerMinute. A digest is looked up, so that how long it takes says nothing of a key.

local byte, find, floor, match, sub = string.byte, string.find, math.floor, string.match, string.sub

local LongestKey = 512
local MostAddresses = 4096

-- Refused sign-ins of this minute by address. Of more addresses than there is room for the others share one count.
local minute, refusals, addresses = 0, {}, 0

local function refused(address)
  local now = floor(os.time() / 60)
  if now ~= minute then minute, refusals, addresses = now, {}, 0 end
  if not refusals[address] then
    if addresses >= MostAddresses then address = "others" else addresses = addresses + 1 end
  end
  refusals[address] = (refusals[address] or 0) + 1
  return refusals[address] > RefusalsPerMinute
end

local function client_of(given)
  if not given or #given > LongestKey then return nil end
  local key = match(given, "^[Bb][Ee][Aa][Rr][Ee][Rr] +([!-~]+)$")
  return key and Clients[sha256(key)]
end

local function decide(handle)
  local headers = handle:headers()
  local client = client_of(headers:get("authorization"))
  if client then
    headers:remove("authorization")
    headers:replace(NameHeader, client)
    return nil
  end
  local address = match(handle:streamInfo():downstreamRemoteAddress(), "^(.*):%d+$") or ""
  if refused(address) then return "429", "Too many keys of this address were refused in this minute." end
  return "401", "no known key"
end

-- Envoy lets a request pass whose script fails; here it fails too.
function envoy_on_request(handle)
  local passed, status, message = pcall(decide, handle)
  if not passed then
    handle:logErr("client keys: " .. tostring(status))
    status, message = "500", "The key could not be checked."
  end
  if status then handle:respond({[":status"] = status}, message) end
end
