-- Holds bodies of clients' requests to values/router/client-requests.yaml: tables (Anywhere, Prefixes, Places, Deepest,
-- MostNames, LongestName, BytesPerToken, Salt) and client-headers.lua stand before this text, and what an Envoy does with `check` behind it. Python and Go
-- read a body differently where it is no strict JSON, says a field twice or isn't UTF-8, so that such a body is refused.

local Escapes = {[34] = true, [47] = true, [92] = true, [98] = true, [102] = true, [110] = true, [114] = true, [116] = true}
local Plain = {b = "\b", f = "\f", n = "\n", r = "\r", t = "\t"}
local Literals = {[116] = "true", [102] = "false", [110] = "null"}

local function refuse(message, param, code)
  error({message = message, param = param, code = code or "invalid_json"}, 0)
end

local function not_allowed(field)
  refuse("The field " .. shown(field) .. " is the router's to set, not a client's.", shown(field), "field_not_allowed")
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
  if last - i > LongestName then refuse("A field's name has more than " .. LongestName .. " bytes.") end
  local name = sub(s, i + 1, last - 1)
  if escaped then name = unescaped(name) end
  local compared = folded(name)
  if forbidden(compared, depth) then not_allowed(compared) end
  local inner = place and place.fields and place.fields[compared]
  if inner and inner.refused then not_allowed(path .. compared) end
  if depth == 1 then
    if seen[compared] then refuse("The body says a field twice, or with other letters (at byte " .. i .. ").") end
    seen[compared] = true
  end
  i = skip(s, last + 1)
  if byte(s, i) ~= 58 then malformed(i) end
  return skip(s, i + 1), inner, name, compared
end

-- Refuses what isn't a JSON object or has a field that isn't a client's. Answers its `model`, "" where it is no text, how many
-- sequences it has servers generate, and how many tokens each may have by the fields `outputs` of its path: none where they
-- say nothing that can be relied on. vLLM takes a number in quotes too, and null for nothing.
local function scan(s, outputs)
  local top, most, unclear, answers, prompts = nil, nil, false, nil, 0

  local function said(text)
    local number = tonumber(text)
    if top == "n" and number then answers = number end
    if not outputs[top] or text == "null" then return end
    if number and number >= 1 then most = math.max(most or 0, number) else unclear = true end
  end

  local seen, objects, places, paths = {}, {}, {}, {}
  local depth, place, path, name, compared, model, names = 0, Places, "", nil, "", nil, 0
  local i = skip(s, 1)
  if byte(s, i) ~= 123 then malformed(i) end
  while true do
    local b, opened = byte(s, i), false
    if b == 123 or b == 91 then
      depth = depth + 1
      if depth > Deepest then refuse("The body has more than " .. Deepest .. " levels.") end
      objects[depth], places[depth], paths[depth] = b == 123, place or false, path
      if depth == 2 and name == "model" then model = "" end
      if depth == 3 and top == "prompt" then prompts = prompts + 1 end
      i = skip(s, i + 1)
      b = byte(s, i)
      opened = not (objects[depth] and b == 125 or not objects[depth] and b == 93)
    elseif b == 34 then
      local last, escaped = text_end(s, i + 1)
      if depth == 1 and name == "model" then
        model = last - i > LongestName and "" or sub(s, i + 1, last - 1)
        if escaped then model = unescaped(model) end
      end
      if depth == 1 and (outputs[top] or top == "n") then
        local text = sub(s, i + 1, last - 1)
        said((string.gsub(escaped and unescaped(text) or text, "_", "")))
      end
      if depth == 2 and top == "prompt" then prompts = prompts + 1 end
      if place and place.data_url and lower(sub(s, i + 1, i + 5)) ~= "data:" then
        refuse("The field " .. path .. " must have its content in it (data:…), not elsewhere.", path, "field_not_allowed")
      end
      i = last + 1
    else
      if not b then malformed(i) end
      if depth == 1 and name == "model" then model = "" end
      local start = i
      i = after_scalar(s, i, b)
      if depth == 1 then said(sub(s, start, i - 1)) end
    end
    while not opened do
      i = skip(s, i)
      b = byte(s, i)
      if depth == 0 then
        if b then malformed(i) end
        return model, math.max(answers or 1, 1) * math.max(prompts, 1), not unclear and most or nil
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
      if depth == 1 then top = name end
      path = place and outer .. compared or ""
    else
      place, path, name = places[depth], paths[depth], nil
    end
  end
end

-- Writes a client's own salt into its body: a digest (sha256.lua) of the stack's secret and the client's name, so that a
-- salt tells neither the secret nor other clients' salts.
local function salt(handle, text)
  local client = handle:headers():get("x-llmd-oke-client")
  if not client then error("nobody knows the client", 0) end
  local own = sha256(Salt .. ":" .. client)
  local opened = find(text, "{", 1, true)
  local comma = find(text, "^%s*}", opened + 1) and "" or ","
  local salted = sub(text, 1, opened) .. '"cache_salt":"' .. own .. '"' .. comma .. sub(text, opened + 1)
  handle:headers():replace("content-length", tostring(handle:body():setBytes(salted)))
end

-- Holds back a request until its body is whole, and refuses it, or answers its model, the tokens of its body, by bytes, how
-- many sequences it has servers generate, and the tokens of each, where the body says them.
local function check(handle)
  local method = handle:headers():get(":method")
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
  local text, row = body:getBytes(0, size), row_of(handle:headers())
  local passed, model, sequences, most = pcall(scan, text, row and row.outputs or {})
  if passed and Salt and row.salted then salt(handle, text) end
  if size > 1048576 then collectgarbage() end
  if passed then return model, size / BytesPerToken, row and row.outputs and sequences or 0, most end
  if type(model) ~= "table" then error(model, 0) end
  respond(handle, 400, model.message, model.code, model.param)
end
