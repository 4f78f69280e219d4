-- Holds jobs that want GPUs, so that the placement service chooses their nodes and releases them
-- (mltcp-placement serve --engine slurm --users-jobs). A job whose user holds it or names its nodes, an array
-- and a heterogeneous job are left alone; the service's own jobs name their nodes.
--
-- Copy it beside slurm.conf, set the two lines below, and add JobSubmitPlugins=lua to slurm.conf.

local partitions = { all = true }  -- the partitions whose jobs are placed
local service_uid = nil            -- the service's user id, if it runs neither as root nor as SlurmUser

local HELD = 0
local NO_VAL = 4294967294
local MARK, PLACED, AWAITED = "mltcp", "mltcp:placed", "^mltcp:waits"  -- AdminComment, which users cannot write
local ACCESS_DENIED = 2002
local CHOSEN = { "req_nodes", "exc_nodes", "features", "partition", "reservation",
    "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket" }
local NUMBERS = { "min_nodes", "max_nodes", "num_tasks" }

local function is_text(value)
    return value ~= nil and value ~= ""
end

-- Whether a list such as "gres:gpu:a100:2,gres/shard=4" has GPUs: of that name, and not 0 of them.
local function has_gpus(tres)
    for each in string.gmatch(tres or "", "[^,]+") do
        local item = string.gsub(string.gsub(each, "^%s+", ""), "^gres[:/]", "")
        if string.match(item, "^[^:=]*") == "gpu" and not string.match(item, "[:=]0+%a*%s*$") then
            return true
        end
    end
    return false
end

local function wants_gpus(job)
    for _, name in ipairs({ "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket" }) do
        if has_gpus(job[name]) then
            return true
        end
    end
    return false
end

local function in_placed_partitions(job, known)
    if is_text(job.partition) then
        for name in string.gmatch(job.partition, "[^,]+") do
            if partitions[name] ~= true then
                return false
            end
        end
        return true
    end
    for name, partition in pairs(known) do
        if partition.flag_default ~= 0 then
            return partitions[name] == true
        end
    end
    return false
end

-- SlurmUser is whom slurmctld, in which this runs, runs as.
local function slurm_uid()
    local file = io.open("/proc/self/status")
    local text = file and file:read("*a") or ""
    if file then
        file:close()
    end
    return tonumber(string.match(text, "Uid:%s+%d+%s+(%d+)"))
end

local function may_place(uid)
    return uid == 0 or uid == service_uid or uid == slurm_uid()
end

function slurm_job_submit(job, known, _)
    local is_placed = is_text(job.req_nodes) or job.priority == HELD
    local is_several = job.array_inx ~= nil or (job.het_job_offset or NO_VAL) ~= NO_VAL
    if not is_placed and not is_several and in_placed_partitions(job, known) and wants_gpus(job) then
        job.priority = HELD
        job.admin_comment = MARK
    end
    return slurm.SUCCESS
end

local function refuse(job, why)
    slurm.log_user("job %s %s", tostring(job.job_id), why)
    return ACCESS_DENIED
end

-- A marked job is released by the service only, on the nodes that it chooses; once it has, what they were chosen for
-- stays as it is.
function slurm_job_modify(change, job, _, uid)
    local mark = job.admin_comment or ""
    local is_awaited = string.find(mark, AWAITED) ~= nil  -- its dependency is
    local is_held, is_placed = mark == MARK or is_awaited, mark == PLACED
    if not (is_held or is_placed) or may_place(uid) or (job.job_state or 0) % 256 ~= 0 then
        return slurm.SUCCESS
    end
    if is_held and (change.priority or NO_VAL) ~= NO_VAL then
        return refuse(job, "is held until it is placed by mltcp-placement, which releases it then")
    end
    if is_awaited and (change.begin_time or 0) ~= 0 and change.begin_time ~= NO_VAL then
        return refuse(job, "waits for its dependency: change that, or submit it again")
    end
    if is_held and is_text(change.req_nodes) then
        return refuse(job, "waits to be placed: its nodes are chosen by mltcp-placement")
    end
    for _, name in ipairs(is_placed and CHOSEN or {}) do
        if change[name] ~= nil then
            return refuse(job, "has been placed: its " .. name .. " stays as it is")
        end
    end
    for _, name in ipairs(is_placed and NUMBERS or {}) do
        if (change[name] or NO_VAL) ~= NO_VAL then
            return refuse(job, "has been placed: its " .. name .. " stays as it is")
        end
    end
    return slurm.SUCCESS
end

return slurm.SUCCESS
