-- Says how many tokens a sequence of a request may have that doesn't say it: as many as the longest of the model that it goes
-- to. Before this text stand client-headers.lua and Longest: tokens by `hosts` and by `entries` of the front door, which lead to a
-- model whatever the body says, and by `models`.

local function longest(headers, model)
  local entry = string.match(headers:get(":path"), "^/models/([^/]+)/")
  return Longest.hosts[lower(headers:get(":authority") or "")] or entry and Longest.entries[entry] or Longest.models[model] or 0
end
