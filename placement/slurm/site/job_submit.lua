-- Holds jobs that want GPUs, so that the placement service chooses their nodes and releases them
-- (mltcp-placement serve --engine slurm --users-jobs). A job whose user holds it or names its nodes, an array
-- and a heterogeneous job are left alone.
--
-- Copy it beside slurm.conf, set `partitions`, and add JobSubmitPlugins=lua to slurm.conf.

local partitions = { all = true }  -- the partitions whose jobs are placed

local HELD = 0
local NO_VAL = 4294967294
local MARK = "mltcp"

local function wants_gpus(job)
    for _, name in ipairs({ "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket" }) do
        local asked = job[name]
        if asked ~= nil and string.find(asked, "gpu", 1, true) then
            return true
        end
    end
    return false
end

local function in_placed_partition(job, known)
    if job.partition ~= nil then
        return partitions[job.partition] == true
    end
    for name, partition in pairs(known) do
        if partition.flag_default ~= 0 then
            return partitions[name] == true
        end
    end
    return false
end

function slurm_job_submit(job, known, _)
    local is_ours = job.comment ~= nil and string.find(job.comment, "^mltcp:") ~= nil
    local is_placed = job.req_nodes ~= nil or job.priority == HELD
    local is_several = job.array_inx ~= nil or (job.het_job_offset or NO_VAL) ~= NO_VAL
    if not is_ours and not is_placed and not is_several and in_placed_partition(job, known) and wants_gpus(job) then
        job.priority = HELD
        job.admin_comment = MARK
    end
    return slurm.SUCCESS
end

function slurm_job_modify(_, _, _, _)
    return slurm.SUCCESS
end

return slurm.SUCCESS
