from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVER_STATE_UNSPECIFIED: _ClassVar[ServerState]
    IN_USE: _ClassVar[ServerState]
    DRAINING: _ClassVar[ServerState]
    UNHEALTHY: _ClassVar[ServerState]
    REMOVED: _ClassVar[ServerState]

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    REGISTERED: _ClassVar[JobState]
    QUEUED: _ClassVar[JobState]
    PLACED: _ClassVar[JobState]
    ENDED: _ClassVar[JobState]
    FAILED: _ClassVar[JobState]
    STOPPING: _ClassVar[JobState]
SERVER_STATE_UNSPECIFIED: ServerState
IN_USE: ServerState
DRAINING: ServerState
UNHEALTHY: ServerState
REMOVED: ServerState
JOB_STATE_UNSPECIFIED: JobState
REGISTERED: JobState
QUEUED: JobState
PLACED: JobState
ENDED: JobState
FAILED: JobState
STOPPING: JobState

class Server(_message.Message):
    __slots__ = ("name", "gpus", "gpu_memory_mb", "cpu_slots", "nic_bps", "switch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    CPU_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NIC_BPS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    gpus: int
    gpu_memory_mb: int
    cpu_slots: int
    nic_bps: int
    switch: str
    def __init__(self, name: _Optional[str] = ..., gpus: _Optional[int] = ..., gpu_memory_mb: _Optional[int] = ..., cpu_slots: _Optional[int] = ..., nic_bps: _Optional[int] = ..., switch: _Optional[str] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("switch", "above", "capacity_bps")
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BPS_FIELD_NUMBER: _ClassVar[int]
    switch: str
    above: str
    capacity_bps: int
    def __init__(self, switch: _Optional[str] = ..., above: _Optional[str] = ..., capacity_bps: _Optional[int] = ...) -> None: ...

class RegisterServersRequest(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[Server]
    def __init__(self, servers: _Optional[_Iterable[_Union[Server, _Mapping]]] = ...) -> None: ...

class RegisterServersReply(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: int
    def __init__(self, added: _Optional[int] = ...) -> None: ...

class ChangeServersRequest(_message.Message):
    __slots__ = ("names", "state", "reason")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    state: ServerState
    reason: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[ServerState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ChangeServersReply(_message.Message):
    __slots__ = ("changed",)
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    changed: int
    def __init__(self, changed: _Optional[int] = ...) -> None: ...

class RegisterLinksRequest(_message.Message):
    __slots__ = ("links",)
    LINKS_FIELD_NUMBER: _ClassVar[int]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    def __init__(self, links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ...) -> None: ...

class RegisterLinksReply(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: int
    def __init__(self, added: _Optional[int] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("duration_ns", "bandwidth_bps", "begins_ns")
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_BPS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_NS_FIELD_NUMBER: _ClassVar[int]
    duration_ns: int
    bandwidth_bps: int
    begins_ns: int
    def __init__(self, duration_ns: _Optional[int] = ..., bandwidth_bps: _Optional[int] = ..., begins_ns: _Optional[int] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("phases",)
    PHASES_FIELD_NUMBER: _ClassVar[int]
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    def __init__(self, phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "gpus", "cpu_slots", "memory_mb", "iterations", "profile", "command", "environment", "policy", "servers", "shares_gpus", "deadline_ns", "priority", "elastic", "slots_per_server", "held", "model", "iteration_samples", "speed", "checkpoints")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CPU_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    SHARES_GPUS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_FIELD_NUMBER: _ClassVar[int]
    SLOTS_PER_SERVER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ITERATION_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    gpus: int
    cpu_slots: int
    memory_mb: int
    iterations: int
    profile: Profile
    command: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    policy: str
    servers: _containers.RepeatedScalarFieldContainer[str]
    shares_gpus: bool
    deadline_ns: int
    priority: float
    elastic: bool
    slots_per_server: int
    held: str
    model: str
    iteration_samples: float
    speed: Speed
    checkpoints: str
    def __init__(self, id: _Optional[str] = ..., gpus: _Optional[int] = ..., cpu_slots: _Optional[int] = ..., memory_mb: _Optional[int] = ..., iterations: _Optional[int] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ..., command: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., policy: _Optional[str] = ..., servers: _Optional[_Iterable[str]] = ..., shares_gpus: _Optional[bool] = ..., deadline_ns: _Optional[int] = ..., priority: _Optional[float] = ..., elastic: _Optional[bool] = ..., slots_per_server: _Optional[int] = ..., held: _Optional[str] = ..., model: _Optional[str] = ..., iteration_samples: _Optional[float] = ..., speed: _Optional[_Union[Speed, _Mapping]] = ..., checkpoints: _Optional[str] = ...) -> None: ...

class Speed(_message.Message):
    __slots__ = ("ring", "parameter_server", "table")
    RING_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVER_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ring: RingSpeed
    parameter_server: ParameterServerSpeed
    table: TableSpeed
    def __init__(self, ring: _Optional[_Union[RingSpeed, _Mapping]] = ..., parameter_server: _Optional[_Union[ParameterServerSpeed, _Mapping]] = ..., table: _Optional[_Union[TableSpeed, _Mapping]] = ...) -> None: ...

class RingSpeed(_message.Message):
    __slots__ = ("compute_ns", "bytes", "inside_bytes_per_s", "between_bytes_per_s")
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    INSIDE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    compute_ns: int
    bytes: int
    inside_bytes_per_s: int
    between_bytes_per_s: int
    def __init__(self, compute_ns: _Optional[int] = ..., bytes: _Optional[int] = ..., inside_bytes_per_s: _Optional[int] = ..., between_bytes_per_s: _Optional[int] = ...) -> None: ...

class ParameterServerSpeed(_message.Message):
    __slots__ = ("worker_ns", "uplink_ns", "server_ns", "downlink_ns")
    WORKER_NS_FIELD_NUMBER: _ClassVar[int]
    UPLINK_NS_FIELD_NUMBER: _ClassVar[int]
    SERVER_NS_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_NS_FIELD_NUMBER: _ClassVar[int]
    worker_ns: int
    uplink_ns: int
    server_ns: int
    downlink_ns: int
    def __init__(self, worker_ns: _Optional[int] = ..., uplink_ns: _Optional[int] = ..., server_ns: _Optional[int] = ..., downlink_ns: _Optional[int] = ...) -> None: ...

class TableSpeed(_message.Message):
    __slots__ = ("step_ns",)
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    step_ns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, step_ns: _Optional[_Iterable[int]] = ...) -> None: ...

class ServerSlots(_message.Message):
    __slots__ = ("server", "slots")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    server: str
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, server: _Optional[str] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("id", "state", "places", "links", "shift_ns", "policy", "reason", "submitted_ns", "placed_ns", "ended_ns", "attached", "job", "deadline_ns", "restarts", "owner", "seen", "traffic_class")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    SHIFT_NS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_NS_FIELD_NUMBER: _ClassVar[int]
    PLACED_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_CLASS_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: JobState
    places: _containers.RepeatedCompositeFieldContainer[ServerSlots]
    links: _containers.RepeatedScalarFieldContainer[str]
    shift_ns: int
    policy: str
    reason: str
    submitted_ns: int
    placed_ns: int
    ended_ns: int
    attached: bool
    job: Job
    deadline_ns: int
    restarts: int
    owner: str
    seen: str
    traffic_class: int
    def __init__(self, id: _Optional[str] = ..., state: _Optional[_Union[JobState, str]] = ..., places: _Optional[_Iterable[_Union[ServerSlots, _Mapping]]] = ..., links: _Optional[_Iterable[str]] = ..., shift_ns: _Optional[int] = ..., policy: _Optional[str] = ..., reason: _Optional[str] = ..., submitted_ns: _Optional[int] = ..., placed_ns: _Optional[int] = ..., ended_ns: _Optional[int] = ..., attached: _Optional[bool] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., deadline_ns: _Optional[int] = ..., restarts: _Optional[int] = ..., owner: _Optional[str] = ..., seen: _Optional[str] = ..., traffic_class: _Optional[int] = ...) -> None: ...

class RegisterJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("job_id", "policy")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    policy: str
    def __init__(self, job_id: _Optional[str] = ..., policy: _Optional[str] = ...) -> None: ...

class RequeueRequest(_message.Message):
    __slots__ = ("job_id", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("job_id", "reason", "failed")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    failed: bool
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ..., failed: _Optional[bool] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("job_ids", "unended", "without_cluster", "page_token")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    UNENDED_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    unended: bool
    without_cluster: bool
    page_token: str
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., unended: _Optional[bool] = ..., without_cluster: _Optional[bool] = ..., page_token: _Optional[str] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("server", "gpus_free", "cpu_slots_free", "state", "reason")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    GPUS_FREE_FIELD_NUMBER: _ClassVar[int]
    CPU_SLOTS_FREE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    server: Server
    gpus_free: int
    cpu_slots_free: int
    state: ServerState
    reason: str
    def __init__(self, server: _Optional[_Union[Server, _Mapping]] = ..., gpus_free: _Optional[int] = ..., cpu_slots_free: _Optional[int] = ..., state: _Optional[_Union[ServerState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class LinkStatus(_message.Message):
    __slots__ = ("name", "above", "capacity_bps", "jobs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BPS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    name: str
    above: str
    capacity_bps: int
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., above: _Optional[str] = ..., capacity_bps: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("jobs", "servers", "links", "policy", "lease_ns", "version", "next_page_token", "decisions", "refusal")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LEASE_NS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    servers: _containers.RepeatedCompositeFieldContainer[ServerStatus]
    links: _containers.RepeatedCompositeFieldContainer[LinkStatus]
    policy: str
    lease_ns: int
    version: str
    next_page_token: str
    decisions: DecisionStatus
    refusal: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[ServerStatus, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkStatus, _Mapping]]] = ..., policy: _Optional[str] = ..., lease_ns: _Optional[int] = ..., version: _Optional[str] = ..., next_page_token: _Optional[str] = ..., decisions: _Optional[_Union[DecisionStatus, _Mapping]] = ..., refusal: _Optional[str] = ...) -> None: ...

class DecisionStatus(_message.Message):
    __slots__ = ("made", "round_ns", "fallback", "limit_ns", "fallbacks", "last_fallback", "shadow", "table", "live", "switched")
    MADE_FIELD_NUMBER: _ClassVar[int]
    ROUND_NS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    LIMIT_NS_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    LAST_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    SWITCHED_FIELD_NUMBER: _ClassVar[int]
    made: int
    round_ns: int
    fallback: str
    limit_ns: int
    fallbacks: _containers.RepeatedCompositeFieldContainer[ReasonCount]
    last_fallback: str
    shadow: ShadowStatus
    table: RatioTableStatus
    live: str
    switched: str
    def __init__(self, made: _Optional[int] = ..., round_ns: _Optional[int] = ..., fallback: _Optional[str] = ..., limit_ns: _Optional[int] = ..., fallbacks: _Optional[_Iterable[_Union[ReasonCount, _Mapping]]] = ..., last_fallback: _Optional[str] = ..., shadow: _Optional[_Union[ShadowStatus, _Mapping]] = ..., table: _Optional[_Union[RatioTableStatus, _Mapping]] = ..., live: _Optional[str] = ..., switched: _Optional[str] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("back",)
    BACK_FIELD_NUMBER: _ClassVar[int]
    back: bool
    def __init__(self, back: _Optional[bool] = ...) -> None: ...

class ReasonCount(_message.Message):
    __slots__ = ("reason", "times")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    reason: str
    times: int
    def __init__(self, reason: _Optional[str] = ..., times: _Optional[int] = ...) -> None: ...

class ShadowStatus(_message.Message):
    __slots__ = ("policy", "asked", "agreed", "differed", "failures", "mean_ns", "longest_ns", "last_difference", "last_failure", "evidence", "weighed", "blocks", "difference", "half")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    DIFFERED_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    MEAN_NS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    WEIGHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    policy: str
    asked: int
    agreed: int
    differed: int
    failures: _containers.RepeatedCompositeFieldContainer[ReasonCount]
    mean_ns: int
    longest_ns: int
    last_difference: str
    last_failure: str
    evidence: str
    weighed: int
    blocks: int
    difference: float
    half: float
    def __init__(self, policy: _Optional[str] = ..., asked: _Optional[int] = ..., agreed: _Optional[int] = ..., differed: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[ReasonCount, _Mapping]]] = ..., mean_ns: _Optional[int] = ..., longest_ns: _Optional[int] = ..., last_difference: _Optional[str] = ..., last_failure: _Optional[str] = ..., evidence: _Optional[str] = ..., weighed: _Optional[int] = ..., blocks: _Optional[int] = ..., difference: _Optional[float] = ..., half: _Optional[float] = ...) -> None: ...

class RatioTableStatus(_message.Message):
    __slots__ = ("name", "observed", "clamped", "refused", "ambiguous", "cells", "last_refused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    CLAMPED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    AMBIGUOUS_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    LAST_REFUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    observed: int
    clamped: int
    refused: int
    ambiguous: int
    cells: int
    last_refused: str
    def __init__(self, name: _Optional[str] = ..., observed: _Optional[int] = ..., clamped: _Optional[int] = ..., refused: _Optional[int] = ..., ambiguous: _Optional[int] = ..., cells: _Optional[int] = ..., last_refused: _Optional[str] = ...) -> None: ...

class TableLayout(_message.Message):
    __slots__ = ("model", "gpus", "nodes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    model: str
    gpus: int
    nodes: int
    def __init__(self, model: _Optional[str] = ..., gpus: _Optional[int] = ..., nodes: _Optional[int] = ...) -> None: ...

class IsolatedRow(_message.Message):
    __slots__ = ("layout", "samples_per_s")
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    layout: TableLayout
    samples_per_s: float
    def __init__(self, layout: _Optional[_Union[TableLayout, _Mapping]] = ..., samples_per_s: _Optional[float] = ...) -> None: ...

class RatioCell(_message.Message):
    __slots__ = ("target", "other", "ratio", "given", "observations")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    target: TableLayout
    other: TableLayout
    ratio: float
    given: float
    observations: int
    def __init__(self, target: _Optional[_Union[TableLayout, _Mapping]] = ..., other: _Optional[_Union[TableLayout, _Mapping]] = ..., ratio: _Optional[float] = ..., given: _Optional[float] = ..., observations: _Optional[int] = ...) -> None: ...

class SamplesRow(_message.Message):
    __slots__ = ("model", "gpus", "total_samples")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    model: str
    gpus: int
    total_samples: float
    def __init__(self, model: _Optional[str] = ..., gpus: _Optional[int] = ..., total_samples: _Optional[float] = ...) -> None: ...

class RatiosRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RatiosReply(_message.Message):
    __slots__ = ("name", "isolated", "ratios", "samples")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ISOLATED_FIELD_NUMBER: _ClassVar[int]
    RATIOS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    name: str
    isolated: _containers.RepeatedCompositeFieldContainer[IsolatedRow]
    ratios: _containers.RepeatedCompositeFieldContainer[RatioCell]
    samples: _containers.RepeatedCompositeFieldContainer[SamplesRow]
    def __init__(self, name: _Optional[str] = ..., isolated: _Optional[_Iterable[_Union[IsolatedRow, _Mapping]]] = ..., ratios: _Optional[_Iterable[_Union[RatioCell, _Mapping]]] = ..., samples: _Optional[_Iterable[_Union[SamplesRow, _Mapping]]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("job_ids", "profiles", "link", "capacity_bps")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BPS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    profiles: _containers.RepeatedCompositeFieldContainer[Profile]
    link: str
    capacity_bps: int
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., profiles: _Optional[_Iterable[_Union[Profile, _Mapping]]] = ..., link: _Optional[str] = ..., capacity_bps: _Optional[int] = ...) -> None: ...

class ScoreReply(_message.Message):
    __slots__ = ("score", "bound", "proven", "rotations", "shifts_ns")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    ROTATIONS_FIELD_NUMBER: _ClassVar[int]
    SHIFTS_NS_FIELD_NUMBER: _ClassVar[int]
    score: float
    bound: float
    proven: bool
    rotations: _containers.RepeatedScalarFieldContainer[float]
    shifts_ns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, score: _Optional[float] = ..., bound: _Optional[float] = ..., proven: _Optional[bool] = ..., rotations: _Optional[_Iterable[float]] = ..., shifts_ns: _Optional[_Iterable[int]] = ...) -> None: ...

class TimeShiftsRequest(_message.Message):
    __slots__ = ("job_ids", "page_token")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    page_token: str
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., page_token: _Optional[str] = ...) -> None: ...

class TimeShift(_message.Message):
    __slots__ = ("job_id", "shift_ns", "period_ns", "links", "drift_ns")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SHIFT_NS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    DRIFT_NS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    shift_ns: int
    period_ns: int
    links: _containers.RepeatedScalarFieldContainer[str]
    drift_ns: int
    def __init__(self, job_id: _Optional[str] = ..., shift_ns: _Optional[int] = ..., period_ns: _Optional[int] = ..., links: _Optional[_Iterable[str]] = ..., drift_ns: _Optional[int] = ...) -> None: ...

class TimeShiftsReply(_message.Message):
    __slots__ = ("shifts", "next_page_token")
    SHIFTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    shifts: _containers.RepeatedCompositeFieldContainer[TimeShift]
    next_page_token: str
    def __init__(self, shifts: _Optional[_Iterable[_Union[TimeShift, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class LinkScore(_message.Message):
    __slots__ = ("link", "jobs", "score", "bound")
    LINK_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    link: str
    jobs: _containers.RepeatedScalarFieldContainer[str]
    score: float
    bound: float
    def __init__(self, link: _Optional[str] = ..., jobs: _Optional[_Iterable[str]] = ..., score: _Optional[float] = ..., bound: _Optional[float] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("places", "score", "links", "chosen", "reason")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedCompositeFieldContainer[ServerSlots]
    score: float
    links: _containers.RepeatedCompositeFieldContainer[LinkScore]
    chosen: bool
    reason: str
    def __init__(self, places: _Optional[_Iterable[_Union[ServerSlots, _Mapping]]] = ..., score: _Optional[float] = ..., links: _Optional[_Iterable[_Union[LinkScore, _Mapping]]] = ..., chosen: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("job_id", "policy", "summary", "candidates", "decision_ns")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    DECISION_NS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    policy: str
    summary: str
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    decision_ns: int
    def __init__(self, job_id: _Optional[str] = ..., policy: _Optional[str] = ..., summary: _Optional[str] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., decision_ns: _Optional[int] = ...) -> None: ...

class PutProfileRequest(_message.Message):
    __slots__ = ("job_id", "profile")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    profile: Profile
    def __init__(self, job_id: _Optional[str] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ...) -> None: ...

class ReportDriftRequest(_message.Message):
    __slots__ = ("job_id", "number", "began_ns", "duration_ns")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEGAN_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    number: int
    began_ns: int
    duration_ns: int
    def __init__(self, job_id: _Optional[str] = ..., number: _Optional[int] = ..., began_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ...) -> None: ...

class ReportDriftReply(_message.Message):
    __slots__ = ("delay",)
    DELAY_FIELD_NUMBER: _ClassVar[int]
    delay: Delay
    def __init__(self, delay: _Optional[_Union[Delay, _Mapping]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("hello", "iteration", "applied", "profile")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    iteration: IterationReport
    applied: Applied
    profile: ProfileReport
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., iteration: _Optional[_Union[IterationReport, _Mapping]] = ..., applied: _Optional[_Union[Applied, _Mapping]] = ..., profile: _Optional[_Union[ProfileReport, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("job_id", "ranks", "process", "restarts")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    ranks: int
    process: AgentProcess
    restarts: int
    def __init__(self, job_id: _Optional[str] = ..., ranks: _Optional[int] = ..., process: _Optional[_Union[AgentProcess, _Mapping]] = ..., restarts: _Optional[int] = ...) -> None: ...

class AgentProcess(_message.Message):
    __slots__ = ("boot_id", "pid_namespace", "pid", "start_ticks")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PID_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int
    def __init__(self, boot_id: _Optional[str] = ..., pid_namespace: _Optional[int] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ...) -> None: ...

class IterationReport(_message.Message):
    __slots__ = ("number", "began_ns", "duration_ns")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEGAN_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    number: int
    began_ns: int
    duration_ns: int
    def __init__(self, number: _Optional[int] = ..., began_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("sequence", "iteration", "late_ranks")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    LATE_RANKS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    iteration: int
    late_ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence: _Optional[int] = ..., iteration: _Optional[int] = ..., late_ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class ProfileReport(_message.Message):
    __slots__ = ("profile",)
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    profile: Profile
    def __init__(self, profile: _Optional[_Union[Profile, _Mapping]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("delay", "detach")
    DELAY_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    delay: Delay
    detach: Detach
    def __init__(self, delay: _Optional[_Union[Delay, _Mapping]] = ..., detach: _Optional[_Union[Detach, _Mapping]] = ...) -> None: ...

class Delay(_message.Message):
    __slots__ = ("sequence", "delay_ns", "reason", "at_ns", "period_ns")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DELAY_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    delay_ns: int
    reason: str
    at_ns: int
    period_ns: int
    def __init__(self, sequence: _Optional[int] = ..., delay_ns: _Optional[int] = ..., reason: _Optional[str] = ..., at_ns: _Optional[int] = ..., period_ns: _Optional[int] = ...) -> None: ...

class Detach(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ClockRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClockReply(_message.Message):
    __slots__ = ("now_ns",)
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    now_ns: int
    def __init__(self, now_ns: _Optional[int] = ...) -> None: ...
