-- Holds clients' requests to values/router/client-requests.yaml, by what stands before their bodies. Its tables stand before
-- this text (Paths, PathPrefix, Dropped, DroppedPrefixes, Kept), and what an Envoy does with `clean` and `admit` behind it. Lua
-- 5.1, without LuaJIT's own libraries.

local byte, char, find, lower, sub = string.byte, string.char, string.find, string.lower, string.sub

local Uuid = "^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$"

-- A client's own words as they may stand in an answer and in a log: 200 bytes at most, without what JSON would escape.
local function shown(words)
  return (string.gsub(sub(words, 1, 200), "[^%w_.-]", "?"))
end

local function respond(handle, status, message, code, param)
  local quoted = param and '"' .. param .. '"' or "null"
  local text = '{"error":{"message":"' .. message .. '","type":"invalid_request_error","param":' .. quoted .. ',"code":"' .. code .. '"}}'
  handle:streamInfo():dynamicMetadata():set("llmd-oke", "refused", param or code)
  handle:respond({[":status"] = tostring(status), ["content-type"] = "application/json"}, text)
end

local function is_dropped(name)
  if Dropped[name] then return true end
  for i = 1, #DroppedPrefixes do
    if sub(name, 1, #DroppedPrefixes[i]) == DroppedPrefixes[i] then return true end
  end
  return false
end

-- Takes headers away that are the router's. A request id stays where it has the form of Envoy's own, and a header by which
-- a Gateway tells models apart with the values that it does so by.
local function clean(handle)
  local headers, gone = handle:headers(), {}
  for name in pairs(headers) do
    if is_dropped(name) and not (Kept and Kept[name] and Kept[name][headers:get(name)]) then gone[#gone + 1] = name end
  end
  local id = headers:get("x-request-id")
  if id and not find(id, Uuid) then gone[#gone + 1] = "x-request-id" end
  for i = 1, #gone do headers:remove(gone[i]) end
end

local function is_json(content_type)
  local kind, rest = string.match(lower(content_type or ""), "^%s*([^;%s]+)%s*(.*)$")
  if kind ~= "application/json" then return false end
  return rest == "" or find(rest, '^;%s*charset%s*=%s*"?utf%-8"?%s*$') ~= nil
end

local function row_of(headers)
  local path = string.gsub(headers:get(":path") or "", "[?#].*$", "")
  if PathPrefix then path = string.gsub(path, PathPrefix, "") end
  return Paths[path]
end

-- What is to be said of a request by its headers: status, words, code. Nothing where they will do.
local function fault(headers)
  local allowed, method = row_of(headers), headers:get(":method")
  if not allowed then return 404, "There is no such path for clients.", "not_found" end
  if allowed.method ~= method then return 405, "This path takes " .. allowed.method .. " only.", "method_not_allowed" end
  local encoding = headers:get("content-encoding")
  if encoding and lower(encoding) ~= "identity" then
    return 415, "The body is compressed; send it as it is.", "unsupported_media_type"
  end
  if method == "POST" and not is_json(headers:get("content-type")) then
    return 415, "The body must be application/json, in UTF-8.", "unsupported_media_type"
  end
end

-- Refuses a request that isn't a client's by its headers.
local function admit(handle)
  local status, message, code = fault(handle:headers())
  if status then respond(handle, status, message, code) end
end

-- Envoy lets a request pass whose script fails; here it fails too.
local function guarded(handle, step)
  local passed, problem = pcall(step, handle)
  if passed then return end
  handle:logErr("client request: " .. tostring(problem))
  respond(handle, 500, "The request could not be checked.", "server_error")
end
