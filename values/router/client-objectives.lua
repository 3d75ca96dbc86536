-- Says the endpoint picker whose turn a request counts for and what priority it has, by what the front door of the stack has
-- written: ClientHeader and PriorityHeader. Its tables stand before this text (ObjectiveHeader and FairnessHeader, which `clean`
-- has taken out of what clients say, and Objectives, names of InferenceObjectives by priority).

local function bind(handle)
  local headers = handle:headers()
  local client, objective = headers:get(ClientHeader), Objectives[headers:get(PriorityHeader) or ""]
  headers:remove(PriorityHeader)
  if client then headers:replace(FairnessHeader, client) end
  if objective then headers:replace(ObjectiveHeader, objective) end
end
