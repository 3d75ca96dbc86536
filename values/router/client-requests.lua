-- Holds clients' requests to values/router/client-requests.yaml, whose tables stand before this text: Paths, PathPrefix,
-- Dropped, DroppedPrefixes, Anywhere, Prefixes, Places, Deepest, MostNames; behind it stands what an Envoy does with `clean` and
-- `check`. Lua 5.1, without LuaJIT's own libraries. Python and Go read a body differently where it is no strict JSON, says a
-- field twice or isn't UTF-8, so that such a body is refused.

local byte, char, find, lower, sub = string.byte, string.char, string.find, string.lower, string.sub

local Uuid = "^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$"
local Escapes = {[34] = true, [47] = true, [92] = true, [98] = true, [102] = true, [110] = true, [114] = true, [116] = true}
local Plain = {b = "\b", f = "\f", n = "\n", r = "\r", t = "\t"}
local Literals = {[116] = "true", [102] = "false", [110] = "null"}

local function refuse(message, param, code)
  error({message = message, param = param, code = code or "invalid_json"}, 0)
end

local function malformed(i)
  refuse("The body is no JSON object in UTF-8 (at byte " .. (i - 1) .. ").")
end

local function is_hex(b)
  return b and (b >= 48 and b <= 57 or b >= 65 and b <= 70 or b >= 97 and b <= 102)
end

local function skip(s, i)
  local b = byte(s, i)
  while b == 32 or b == 10 or b == 13 or b == 9 do
    i = i + 1
    b = byte(s, i)
  end
  return i
end

-- After a character of several bytes (Unicode 16, table 3-7).
local function after_character(s, i, b)
  local second, low, high, more = byte(s, i + 1), 128, 191, 0
  if b >= 194 and b <= 223 then more = 0
  elseif b >= 224 and b <= 239 then
    more = 1
    if b == 224 then low = 160 elseif b == 237 then high = 159 end
  elseif b >= 240 and b <= 244 then
    more = 2
    if b == 240 then low = 144 elseif b == 244 then high = 143 end
  else malformed(i) end
  if not second or second < low or second > high then malformed(i) end
  for j = i + 2, i + 1 + more do
    local b = byte(s, j)
    if not b or b < 128 or b > 191 then malformed(j) end
  end
  return i + 2 + more
end

-- Where the text ends that begins at `i`, and whether it has escapes.
local function text_end(s, i)
  local escaped = false
  while true do
    local b = byte(s, i)
    if b == 34 then return i, escaped end
    if not b or b < 32 then malformed(i) end
    if b == 92 then
      escaped = true
      local e = byte(s, i + 1)
      if e == 117 then
        for j = i + 2, i + 5 do
          if not is_hex(byte(s, j)) then malformed(j) end
        end
        i = i + 6
      elseif Escapes[e] then i = i + 2
      else malformed(i) end
    elseif b < 128 then i = i + 1
    else i = after_character(s, i, b) end
  end
end

local function utf8(code)
  if code < 128 then return char(code) end
  if code < 2048 then return char(192 + math.floor(code / 64), 128 + code % 64) end
  return char(224 + math.floor(code / 4096), 128 + math.floor(code / 64) % 64, 128 + code % 64)
end

-- Names and models have no characters beyond U+FFFF that anybody compares, so that halves of them may stay halves.
local function unescaped(text)
  return (string.gsub(text, "\\(.)(%x?%x?%x?%x?)", function(letter, digits)
    if letter == "u" then return utf8(tonumber(digits, 16)) end
    return (Plain[letter] or letter) .. digits
  end))
end

-- As Go compares names of fields: without case, a long s and the sign of Kelvin too.
local function folded(name)
  if not find(name, "[A-Z\128-\255]") then return name end
  return (string.gsub(string.gsub(lower(name), "\197\191", "s"), "\226\132\170", "k"))
end

local function after_digits(s, i)
  local b = byte(s, i)
  if not b or b < 48 or b > 57 then malformed(i) end
  repeat
    i = i + 1
    b = byte(s, i)
  until not b or b < 48 or b > 57
  return i
end

local function after_scalar(s, i, b)
  local literal = Literals[b]
  if literal then
    if sub(s, i, i + #literal - 1) ~= literal then malformed(i) end
    return i + #literal
  end
  if b == 45 then i = i + 1 end
  if byte(s, i) == 48 then i = i + 1 else i = after_digits(s, i) end
  if byte(s, i) == 46 then i = after_digits(s, i + 1) end
  b = byte(s, i)
  if b == 101 or b == 69 then
    b = byte(s, i + 1)
    i = after_digits(s, (b == 43 or b == 45) and i + 2 or i + 1)
  end
  return i
end

local function forbidden(name, depth)
  if Anywhere[name] then return true end
  if depth > 1 then return false end
  for i = 1, #Prefixes do
    if sub(name, 1, #Prefixes[i]) == Prefixes[i] then return true end
  end
  return false
end

-- Reads a name and its colon at `i`: where its value begins, what is refused in that, and the name.
local function read_name(s, i, depth, place, seen, path)
  if byte(s, i) ~= 34 then malformed(i) end
  local last, escaped = text_end(s, i + 1)
  local name = sub(s, i + 1, last - 1)
  if escaped then name = unescaped(name) end
  local compared = folded(name)
  if forbidden(compared, depth) then
    refuse("The field " .. compared .. " is the router's to set, not a client's.", compared, "field_not_allowed")
  end
  local inner = place and place.fields and place.fields[compared]
  if inner and inner.refused then
    refuse("The field " .. path .. compared .. " is the router's to set, not a client's.", path .. compared, "field_not_allowed")
  end
  if depth == 1 then
    if seen[compared] then refuse("The body says a field twice, or with other letters (at byte " .. i .. ").") end
    seen[compared] = true
  end
  i = skip(s, last + 1)
  if byte(s, i) ~= 58 then malformed(i) end
  return skip(s, i + 1), inner, name, compared
end

-- Refuses what isn't a JSON object or has a field that isn't a client's. Answers its `model`, "" where it is no text, and
-- where its fields begin.
local function scan(s)
  local seen, objects, places, paths = {}, {}, {}, {}
  local depth, place, path, name, compared, model, names = 0, Places, "", nil, "", nil, 0
  local i = skip(s, 1)
  local first = i + 1
  if byte(s, i) ~= 123 then malformed(i) end
  while true do
    local b, opened = byte(s, i), false
    if b == 123 or b == 91 then
      depth = depth + 1
      if depth > Deepest then refuse("The body has more than " .. Deepest .. " levels.") end
      objects[depth], places[depth], paths[depth] = b == 123, place or false, path
      if depth == 2 and name == "model" then model = "" end
      i = skip(s, i + 1)
      b = byte(s, i)
      opened = not (objects[depth] and b == 125 or not objects[depth] and b == 93)
    elseif b == 34 then
      local last, escaped = text_end(s, i + 1)
      if depth == 1 and name == "model" then
        model = sub(s, i + 1, last - 1)
        if escaped then model = unescaped(model) end
      end
      if place and place.data_url and lower(sub(s, i + 1, i + 5)) ~= "data:" then
        refuse("The field " .. path .. " must have its content in it (data:…), not elsewhere.", path, "field_not_allowed")
      end
      i = last + 1
    else
      if not b then malformed(i) end
      if depth == 1 and name == "model" then model = "" end
      i = after_scalar(s, i, b)
    end
    while not opened do
      i = skip(s, i)
      b = byte(s, i)
      if depth == 0 then
        if b then malformed(i) end
        return model, first
      end
      if b == 44 then
        i = skip(s, i + 1)
        opened = true
      elseif objects[depth] and b == 125 or not objects[depth] and b == 93 then
        depth = depth - 1
        i = i + 1
      else malformed(i) end
    end
    if objects[depth] then
      local outer = paths[depth]
      if outer ~= "" then outer = outer .. "." end
      names = names + 1
      if names > MostNames then refuse("The body has more than " .. MostNames .. " fields.") end
      i, place, name, compared = read_name(s, i, depth, places[depth], seen, outer)
      path = place and outer .. compared or ""
    else
      place, path, name = places[depth], paths[depth], nil
    end
  end
end

local function respond(handle, status, message, code, param)
  local shown = param and '"' .. string.gsub(param, "[^%w_.-]", "?") .. '"' or "null"
  local text = '{"error":{"message":"' .. message .. '","type":"invalid_request_error","param":' .. shown .. ',"code":"' .. code .. '"}}'
  handle:respond({[":status"] = tostring(status), ["content-type"] = "application/json"}, text)
end

local function is_dropped(name)
  if Dropped[name] then return true end
  for i = 1, #DroppedPrefixes do
    if sub(name, 1, #DroppedPrefixes[i]) == DroppedPrefixes[i] then return true end
  end
  return false
end

-- Takes headers away that are the router's. A request id stays where it has the form of Envoy's own.
local function clean(handle)
  local headers, gone = handle:headers(), {}
  for name in pairs(headers) do
    if is_dropped(name) then gone[#gone + 1] = name end
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

-- What is to be said of a request by its headers: status, words, code. Nothing where they will do.
local function fault(headers)
  local path = string.gsub(headers:get(":path") or "", "[?#].*$", "")
  if PathPrefix then path = string.gsub(path, PathPrefix, "") end
  local allowed, method = Paths[path], headers:get(":method")
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

-- Holds back a request until its body is whole, and refuses it, or answers its model and where its body's fields begin.
local function check(handle)
  local headers = handle:headers()
  local status, message, code = fault(headers)
  if status then
    respond(handle, status, message, code)
    return
  end
  local method = headers:get(":method")
  local body = handle:body()
  local size = body and body:length() or 0
  if method ~= "POST" then
    if size > 0 then respond(handle, 400, "This path takes no body.", "invalid_json") end
    return
  end
  if size == 0 then
    respond(handle, 400, "The body is missing.", "invalid_json")
    return
  end
  local passed, model, first = pcall(scan, body:getBytes(0, size))
  if size > 1048576 then collectgarbage() end
  if passed then return model, first end
  if type(model) ~= "table" then error(model, 0) end
  respond(handle, 400, model.message, model.code, model.param)
end

-- Envoy lets a request pass whose script fails; here it fails too.
local function guarded(handle, step)
  local passed, problem = pcall(step, handle)
  if passed then return end
  handle:logErr("client request: " .. tostring(problem))
  respond(handle, 500, "The request could not be checked.", "server_error")
end
