-- Refuses tokens before their signatures are verified: one that was refused RefusalsPerMinute times in this minute (of requests
-- without one, those of such an address), and each that hasn't passed before, once FailuresPerSecond others were refused in this
-- second, whatever they were. Before this text stand these numbers and PassedNamespace, which a request has that got past the
-- sign-in. Failures aren't counted by address: behind a load balancer an address is many clients.

local floor, match, sub = math.floor, string.match, string.sub
local Namespace = "llmd-oke.token"

local MostTokens = 4096
local SignatureEnd = -64

-- Of more tokens than there is room for the first ones are counted; the others are bounded by the second.
local minute, refusals, tokens = 0, {}, 0
local second, failures = 0, 0

-- Tokens that passed; of more than there is room for, those that were used last.
local known, used_before, number = {}, {}, 0

local function refused(token)
  local now = floor(os.time() / 60)
  if now ~= minute then minute, refusals, tokens = now, {}, 0 end
  return refusals[token] or 0
end

local function failed()
  local now = os.time()
  if now ~= second then second, failures = now, 0 end
  return failures
end

local function remember(token)
  if known[token] then return end
  if number >= MostTokens then known, used_before, number = {}, known, 0 end
  known[token], number = true, number + 1
end

local function is_known(token)
  if used_before[token] then remember(token) end
  return known[token]
end

local function decide(handle)
  local given = handle:headers():get("authorization")
  local token = given and sub(given, SignatureEnd) or match(handle:streamInfo():downstreamRemoteAddress(), "^(.*):%d+$") or ""
  if refused(token) >= RefusalsPerMinute then return "429", "The token was refused too often in this minute." end
  if given and failed() >= FailuresPerSecond and not is_known(token) then
    return "429", "Too many tokens were refused in this second to verify one that hasn't passed before."
  end
  handle:streamInfo():dynamicMetadata():set(Namespace, "token", token)
  handle:streamInfo():dynamicMetadata():set(Namespace, "given", given ~= nil)
end

local function count(handle)
  local metadata, status = handle:streamInfo():dynamicMetadata(), handle:headers():get(":status")
  local asked = metadata:get(Namespace)
  if not asked then return end
  if metadata:get(PassedNamespace) then
    if asked.given then remember(asked.token) end
    return
  end
  if status ~= "401" and status ~= "403" then return end
  if asked.given then failures = failed() + 1 end
  local times = refused(asked.token)
  if times == 0 then
    if tokens >= MostTokens then return end
    tokens = tokens + 1
  end
  refusals[asked.token] = times + 1
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
