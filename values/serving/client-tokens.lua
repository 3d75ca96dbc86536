-- Refuses a token, or an address without one, that was refused RefusalsPerMinute times in this minute, before its signature
-- is verified once more. Before this text stand that number and PassedNamespace, which a request has that got past the
-- sign-in. What is counted is the token and not its address: behind a load balancer an address is many clients.

local floor, match, sub = math.floor, string.match, string.sub
local Namespace = "llmd-oke.token"

local MostTokens = 4096
local SignatureEnd = -64

-- Of more tokens than there is room for the first ones are counted; the others are verified each time.
local minute, refusals, tokens = 0, {}, 0

local function refused(token)
  local now = floor(os.time() / 60)
  if now ~= minute then minute, refusals, tokens = now, {}, 0 end
  return refusals[token] or 0
end

local function decide(handle)
  local given = handle:headers():get("authorization")
  local token = given and sub(given, SignatureEnd) or match(handle:streamInfo():downstreamRemoteAddress(), "^(.*):%d+$") or ""
  if refused(token) >= RefusalsPerMinute then return "429", "The token was refused too often in this minute." end
  handle:streamInfo():dynamicMetadata():set(Namespace, "token", token)
end

local function count(handle)
  local metadata, status = handle:streamInfo():dynamicMetadata(), handle:headers():get(":status")
  local asked = metadata:get(Namespace)
  if not asked or metadata:get(PassedNamespace) or (status ~= "401" and status ~= "403") then return end
  local number = refused(asked.token)
  if number == 0 then
    if tokens >= MostTokens then return end
    tokens = tokens + 1
  end
  refusals[asked.token] = number + 1
end

-- Envoy lets a request pass whose script fails; here it fails too.
function envoy_on_request(handle)
  local passed, status, message = pcall(decide, handle)
  if not passed then
    handle:logErr("client tokens: " .. tostring(status))
    status, message = "500", "The token could not be checked."
  end
  if status then handle:respond({[":status"] = status}, message) end
end

function envoy_on_response(handle)
  local passed, problem = pcall(count, handle)
  if not passed then handle:logErr("client tokens: " .. tostring(problem)) end
end
