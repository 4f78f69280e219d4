"""A typed ctypes binding of the libbpf functions (1.0 or newer) that this project uses."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from mltcp.core.errors import MltcpError, NotAvailableError
from mltcp.ebpf.distribution import remedies

MAP_TYPE_STRUCT_OPS = 26
PROGRAM_TYPE_STRUCT_OPS = 27
ALLOW_OVERRIDE, ALLOW_MULTI = 1, 2  # BPF_F_ALLOW_OVERRIDE, BPF_F_ALLOW_MULTI
_SOCK_OPS = 3  # BPF_CGROUP_SOCK_OPS
_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_RING_SAMPLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_P, _I, _S, _U64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64
_U32S = ctypes.POINTER(ctypes.c_uint32)
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "libbpf_major_version": (ctypes.c_uint32, []),
    "libbpf_minor_version": (ctypes.c_uint32, []),
    "libbpf_set_print": (_P, [_PRINT]),
    "bpf_object__open_mem": (_P, [_P, ctypes.c_size_t, _P]),
    "bpf_object__load": (_I, [_P]),
    "bpf_object__close": (None, [_P]),
    "bpf_object__find_map_by_name": (_P, [_P, _S]),
    "bpf_object__find_program_by_name": (_P, [_P, _S]),
    "bpf_object__next_map": (_P, [_P, _P]),
    "bpf_object__next_program": (_P, [_P, _P]),
    "bpf_map__name": (_S, [_P]),
    "bpf_map__type": (_I, [_P]),
    "bpf_map__fd": (_I, [_P]),
    "bpf_map__reuse_fd": (_I, [_P, _I]),
    "bpf_map__initial_value": (_P, [_P, ctypes.POINTER(ctypes.c_size_t)]),
    "bpf_map__attach_struct_ops": (_P, [_P]),
    "bpf_prog_bind_map": (_I, [_I, _I, _P]),
    "bpf_prog_get_fd_by_id": (_I, [ctypes.c_uint32]),
    "bpf_program__fd": (_I, [_P]),
    "bpf_program__attach_cgroup": (_P, [_P, _I]),
    "bpf_program__attach_iter": (_P, [_P, _P]),
    "bpf_iter_create": (_I, [_I]),
    "bpf_link__fd": (_I, [_P]),
    "bpf_link__disconnect": (None, [_P]),
    "bpf_link__destroy": (_I, [_P]),
    "bpf_obj_pin": (_I, [_I, _S]),
    "bpf_obj_get": (_I, [_S]),
    "bpf_prog_query": (_I, [_I, _I, ctypes.c_uint32, _U32S, _U32S, _U32S]),
    "bpf_map_lookup_elem": (_I, [_I, _P, _P]),
    "bpf_map_update_elem": (_I, [_I, _P, _P, _U64]),
    "bpf_map_delete_elem": (_I, [_I, _P]),
    "bpf_map_get_next_key": (_I, [_I, _P, _P]),
    "bpf_map_get_next_id": (_I, [ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)]),
    "bpf_map_get_fd_by_id": (_I, [ctypes.c_uint32]),
    "bpf_obj_get_info_by_fd": (_I, [_I, _P, ctypes.POINTER(ctypes.c_uint32)]),
    "btf__parse": (_P, [_S, _P]),
    "btf__free": (None, [_P]),
    "btf__find_by_name_kind": (_I, [_P, _S, ctypes.c_uint32]),
    "btf__type_by_id": (_P, [_P, ctypes.c_uint32]),
    "btf__name_by_offset": (_S, [_P, ctypes.c_uint32]),
    "ring_buffer__new": (_P, [_I, _RING_SAMPLE, _P, _P]),
    "ring_buffer__poll": (_I, [_P, _I]),
    "ring_buffer__consume": (_I, [_P]),
    "ring_buffer__free": (None, [_P]),
}


class BpfError(MltcpError):
    """The kernel or libbpf refused a call; the message has the line of their log that says why, ``detail`` all."""

    def __init__(self, what: str, number: int, detail: str = "") -> None:
        reason = f"{what}: {os.strerror(number) if number else 'unknown error'}"
        super().__init__(reason + (f" ({_why(detail)})" if detail else ""))
        self.errno = number
        self.detail = detail


def _why(log: str) -> str:
    """The verifier's reason in what libbpf prints, which is the line before its statistics; else the last line."""
    lines = log.strip().splitlines() or [log]
    return next((before for before, line in pairwise(lines) if line.startswith("processed ")), lines[-1])


class _MapInfo(ctypes.Structure):
    """The head of the kernel's ``struct bpf_map_info``."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
        ("rest", ctypes.c_char * 64),
    )


class _ProgramInfo(ctypes.Structure):
    """The head of the kernel's ``struct bpf_prog_info``."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("tag", ctypes.c_uint8 * 8),
        ("lengths", ctypes.c_uint32 * 2),
        ("instructions", ctypes.c_uint64 * 2),
        ("load_time", ctypes.c_uint64),
        ("created_by_uid", ctypes.c_uint32),
        ("nr_map_ids", ctypes.c_uint32),
        ("map_ids", ctypes.c_uint64),
        ("name", ctypes.c_char * 16),
    )


class _Messages:
    """Collects what libbpf prints, such as the verifier's log, for error messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.vsnprintf = ctypes.CDLL(None).vsnprintf
        self.callback = _PRINT(self._receive)

    def _receive(self, level: int, pattern: bytes, arguments: int) -> int:
        if level <= 1:  # warnings and information; debugging is left out
            text = ctypes.create_string_buffer(65536)
            self.vsnprintf(text, len(text), ctypes.c_char_p(pattern), ctypes.c_void_p(arguments))
            self.lines.append(text.value.decode(errors="replace").strip())
        return 0

    def take(self) -> str:
        """Return all lines since the last call."""
        text, self.lines = "\n".join(self.lines), []
        return text


_messages = _Messages()


@cache
def library() -> ctypes.CDLL:
    """The system's libbpf.

    Raises:
        NotAvailableError: it is not installed, or older than 1.0.
    """
    name = ctypes.util.find_library("bpf") or "libbpf.so.1"
    try:
        found = ctypes.CDLL(name, use_errno=True)
        found.libbpf_major_version.restype = ctypes.c_uint32
    except (OSError, AttributeError):
        raise NotAvailableError(f"libbpf 1.0 or newer is missing: {remedies().libbpf}") from None
    if found.libbpf_major_version() < 1:
        raise NotAvailableError(f"{name} is older than 1.0: {remedies().libbpf}")
    for symbol, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, symbol)
        function.restype, function.argtypes = result, arguments
    found.libbpf_set_print(_messages.callback)
    return found


def version() -> str:
    """The version of the system's libbpf, such as ``1.1``."""
    return f"{library().libbpf_major_version()}.{library().libbpf_minor_version()}"


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise BpfError(what, ctypes.get_errno() or -result, _messages.take())
    return result


class BpfMap:
    """A BPF map by its descriptor; keys and values are raw bytes."""

    def __init__(self, fd: int, owned: bool = False) -> None:
        self.fd = fd
        self._owned = owned
        info = map_info(fd)
        self.name: str = info.name.decode()
        self.id: int = info.id
        self.type: int = info.type
        self.key_size: int = info.key_size
        self.value_size: int = info.value_size

    @classmethod
    def pinned(cls, path: Path) -> BpfMap:
        """The map pinned at ``path``; FileNotFoundError when there is none."""
        fd = library().bpf_obj_get(str(path).encode())
        if fd < 0 and ctypes.get_errno() == errno.ENOENT:
            raise FileNotFoundError(path)
        return cls(_checked(fd, f"cannot open the map pinned at {path}"), owned=True)

    @classmethod
    def by_id(cls, number: int) -> BpfMap:
        """The map with this kernel-wide id."""
        return cls(_checked(library().bpf_map_get_fd_by_id(number), f"cannot open map {number}"), owned=True)

    def close(self) -> None:
        """Close the descriptor, if this object owns it."""
        if self._owned and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> BpfMap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lookup(self, key: bytes) -> bytes | None:
        """The value of ``key``, or None."""
        value = ctypes.create_string_buffer(self.value_size)
        if library().bpf_map_lookup_elem(self.fd, key, value) < 0:
            if ctypes.get_errno() == errno.ENOENT:
                return None
            raise BpfError(f"cannot read map {self.name}", ctypes.get_errno())
        return value.raw

    def update(self, key: bytes, value: bytes, flags: int = 0) -> None:
        """Set the value of ``key`` (flags: 1 BPF_NOEXIST, 2 BPF_EXIST)."""
        _checked(library().bpf_map_update_elem(self.fd, key, value, flags), f"cannot write map {self.name}")

    def delete(self, key: bytes) -> bool:
        """Remove ``key``; returns False if the map does not have it."""
        if library().bpf_map_delete_elem(self.fd, key) < 0:
            if ctypes.get_errno() == errno.ENOENT:
                return False
            raise BpfError(f"cannot delete from map {self.name}", ctypes.get_errno())
        return True

    def all_keys(self) -> Iterator[bytes]:
        """Every key; reliable only while no key is deleted."""
        key, following = None, ctypes.create_string_buffer(self.key_size)
        while library().bpf_map_get_next_key(self.fd, key, following) == 0:
            key = following.raw
            yield key

    def duplicate(self) -> BpfMap:
        """The same map by a descriptor of its own."""
        return BpfMap(os.dup(self.fd), owned=True)

    def pin(self, path: Path) -> None:
        """Pin the map at ``path`` of a bpffs, so that it outlives this process."""
        _checked(library().bpf_obj_pin(self.fd, str(path).encode()), f"cannot pin map {self.name} at {path}")


def map_info(fd: int) -> _MapInfo:
    """The kernel's description of the map behind ``fd``."""
    info, size = _MapInfo(), ctypes.c_uint32(ctypes.sizeof(_MapInfo))
    _checked(
        library().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)), "cannot describe a map"
    )
    return info


def all_maps() -> Iterator[BpfMap]:
    """Every map of the kernel; each is closed when the next one is taken.

    Raises:
        BpfError: this process may not list them: that takes CAP_SYS_ADMIN.
    """
    number, following = 0, ctypes.c_uint32()
    while library().bpf_map_get_next_id(number, ctypes.byref(following)) == 0:
        number = following.value
        try:
            found = BpfMap.by_id(number)
        except BpfError as error:
            if error.errno != errno.ENOENT:
                raise
            continue  # removed since it was listed
        with found:
            yield found
    if ctypes.get_errno() != errno.ENOENT:
        raise BpfError("cannot list the maps of the kernel", ctypes.get_errno())


def maps_of_program(number: int, kind: int) -> list[int]:
    """The ids of the maps that a program uses; none, if there is no program of this kind with this id.

    Raises:
        BpfError: this process may not look: that takes CAP_SYS_ADMIN.
    """
    ids = (ctypes.c_uint32 * 64)()
    try:
        info = _program_info(number, _ProgramInfo(nr_map_ids=len(ids), map_ids=ctypes.addressof(ids)))
    except BpfError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    return ids[: info.nr_map_ids] if info.type == kind else []


def program_name(number: int) -> str:
    """The name of a program; empty if it has none, is gone, or may not be asked for (that takes CAP_SYS_ADMIN)."""
    try:
        return bytes(_program_info(number, _ProgramInfo()).name).decode(errors="replace")
    except BpfError:
        return ""


def _program_info(number: int, info: _ProgramInfo) -> _ProgramInfo:
    """What the kernel knows of a program, written into `info`, which says where lists go."""
    fd = _checked(library().bpf_prog_get_fd_by_id(number), f"cannot open program {number}")
    size = ctypes.c_uint32(ctypes.sizeof(info))
    try:
        _checked(
            library().bpf_obj_get_info_by_fd(fd, ctypes.byref(info), ctypes.byref(size)),
            f"cannot describe program {number}",
        )
    finally:
        os.close(fd)
    return info


@dataclass(frozen=True)
class CgroupPrograms:
    """The sock_ops programs that are attached to a cgroup: their numbers, and the flags that they share."""

    ids: tuple[int, ...]
    flags: int


def cgroup_programs(cgroup_fd: int) -> CgroupPrograms:
    """The sock_ops programs of a cgroup, without those of the cgroups above."""
    flags, ids, count = ctypes.c_uint32(), (ctypes.c_uint32 * 64)(), ctypes.c_uint32(64)
    _checked(
        library().bpf_prog_query(cgroup_fd, _SOCK_OPS, 0, ctypes.byref(flags), ids, ctypes.byref(count)),
        "cannot ask for the programs of a cgroup",
    )
    return CgroupPrograms(tuple(ids[: count.value]), flags.value)


class BpfLink:
    """An attached program; it is detached when this object is closed or its process ends."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    @property
    def fd(self) -> int:
        """The link's descriptor."""
        return int(library().bpf_link__fd(self._handle))

    def close(self) -> None:
        """Detach."""
        if self._handle is not None:
            library().bpf_link__destroy(self._handle)
            self._handle = None

    def leave_attached(self) -> None:
        """Release the link without detaching (struct_ops: it stays registered until its map's element is deleted)."""
        library().bpf_link__disconnect(self._handle)
        self.close()

    def __enter__(self) -> BpfLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BpfObject:
    """An opened eBPF object file; its maps and programs exist in the kernel after :meth:`load`."""

    def __init__(self, handle: int, path: Path, image: ctypes.Array[ctypes.c_char]) -> None:
        self._handle: int | None = handle
        self._image = image  # libbpf reads from it until the object is loaded
        self.path = path
        self.name = path.name

    @classmethod
    def open(cls, path: Path, rename: dict[str, str] | None = None) -> BpfObject:
        """Open an object file, without loading it.

        Args:
            path: the compiled object.
            rename: names to replace throughout the object, each by one of the same length: a congestion control's name
                is kernel-wide, and two copies need two names.
        """
        content = path.read_bytes()
        for old, new in (rename or {}).items():
            if len(old) != len(new):
                raise MltcpError(
                    f"{path.name}: {old} can only be renamed to a name of {len(old)} characters, not {new}"
                )
            content = content.replace(old.encode(), new.encode())
        image = ctypes.create_string_buffer(content, len(content))
        handle = library().bpf_object__open_mem(image, len(content), None)
        if not handle:
            raise BpfError(f"cannot open {path.name}", ctypes.get_errno(), _messages.take())
        return cls(handle, path, image)

    def __enter__(self) -> BpfObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the object; pinned maps, attached programs and registered controls stay."""
        if self._handle is not None:
            library().bpf_object__close(self._handle)
            self._handle = None

    def reuse(self, map_name: str, existing: BpfMap) -> None:
        """At :meth:`load`, use an existing map instead of a new one."""
        _checked(
            library().bpf_map__reuse_fd(self._map(map_name), existing.fd), f"cannot share the map {map_name}"
        )

    def set_initial(self, map_name: str, value: bytes) -> None:
        """Set the beginning of a global data section (such as ``.rodata``) before :meth:`load`."""
        size = ctypes.c_size_t()
        address = library().bpf_map__initial_value(self._map(map_name), ctypes.byref(size))
        if not address or size.value < len(value):
            raise MltcpError(f"{self.name}: {map_name} has {size.value} bytes, not {len(value)}")
        ctypes.memmove(address, value, len(value))

    def load(self) -> None:
        """Verify and load all programs and maps.

        Raises:
            BpfError: the kernel rejects it; with the verifier's log.
        """
        _messages.take()
        result = library().bpf_object__load(self._handle)
        if result < 0:
            raise BpfError(f"the kernel rejects {self.name}", ctypes.get_errno() or -result, _messages.take())
        self._image = ctypes.create_string_buffer(1)

    def bind(self, map_name: str) -> None:
        """Let every program of the loaded object hold a map, whether it uses it or not."""
        fd = library().bpf_map__fd(self._map(map_name))
        program = library().bpf_object__next_program(self._handle, None)
        while program:
            bound = library().bpf_prog_bind_map(library().bpf_program__fd(program), fd, None)
            _checked(bound, f"cannot bind {map_name}")
            program = library().bpf_object__next_program(self._handle, program)

    def map_names(self) -> list[str]:
        """The maps of the object, struct_ops ones included."""
        names, current = [], library().bpf_object__next_map(self._handle, None)
        while current:
            names.append(library().bpf_map__name(current).decode())
            current = library().bpf_object__next_map(self._handle, current)
        return names

    def map(self, name: str) -> BpfMap:
        """A loaded map; it lives as long as this object."""
        return BpfMap(library().bpf_map__fd(self._map(name)))

    def program(self, name: str) -> int:
        """The descriptor of a loaded program; it lives as long as this object."""
        return _checked(library().bpf_program__fd(self._program(name)), f"{self.name}: program {name}")

    def register_struct_ops(self, name: str) -> BpfLink:
        """Register a struct_ops map with its subsystem (a congestion control with TCP)."""
        return self._link(library().bpf_map__attach_struct_ops(self._map(name)), f"cannot register {name}")

    def attach_cgroup(self, program: str, cgroup_fd: int) -> BpfLink:
        """Attach a cgroup program."""
        handle = library().bpf_program__attach_cgroup(self._program(program), cgroup_fd)
        return self._link(handle, f"cannot attach {program} to the cgroup")

    def read_iterator(self, program: str, over: BpfMap) -> bytes:
        """Run an iterator program over the elements of a map; returns its output."""
        target = (ctypes.c_uint32 * 4)(over.fd, 0, 0, 0)  # union bpf_iter_link_info
        options = _IterOptions(ctypes.sizeof(_IterOptions), ctypes.addressof(target), ctypes.sizeof(target))
        with self._link(
            library().bpf_program__attach_iter(self._program(program), ctypes.byref(options)),
            f"cannot attach {program}",
        ) as link:
            fd = _checked(library().bpf_iter_create(link.fd), f"cannot run {program}")
            with os.fdopen(fd, "rb", buffering=0) as stream:
                return b"".join(iter(lambda: stream.read(65536), b""))

    def _link(self, handle: int | None, what: str) -> BpfLink:
        if not handle:
            raise BpfError(what, ctypes.get_errno(), _messages.take())
        return BpfLink(handle)

    def _map(self, name: str) -> int:
        handle = library().bpf_object__find_map_by_name(self._handle, name.encode())
        if not handle:
            raise MltcpError(f"{self.name} has no map {name}; it has {', '.join(self.map_names())}")
        return int(handle)

    def _program(self, name: str) -> int:
        handle = library().bpf_object__find_program_by_name(self._handle, name.encode())
        if not handle:
            raise MltcpError(f"{self.name} has no program {name}")
        return int(handle)


class _IterOptions(ctypes.Structure):
    """``struct bpf_iter_attach_opts`` of libbpf."""

    _fields_ = (("sz", ctypes.c_size_t), ("link_info", ctypes.c_void_p), ("link_info_len", ctypes.c_uint32))


class RingBuffer:
    """A reader of a BPF ring buffer, which passes every sample to ``receive`` as bytes."""

    def __init__(self, over: BpfMap, receive: Callable[[bytes], None]) -> None:
        def sample(_: int, address: int, size: int) -> int:
            receive(ctypes.string_at(address, size))
            return 0

        self._callback = _RING_SAMPLE(sample)  # kept: libbpf holds only the pointer
        self._handle: int | None = library().ring_buffer__new(over.fd, self._callback, None, None)
        if not self._handle:
            raise BpfError(f"cannot read the ring buffer {over.name}", ctypes.get_errno())

    def poll(self, timeout_s: float) -> int:
        """Wait up to ``timeout_s`` for samples; returns how many were received."""
        count = int(library().ring_buffer__poll(self._handle, int(timeout_s * 1000)))
        if count < 0 and -count != errno.EINTR:
            raise BpfError("cannot poll the ring buffer", -count)
        return max(count, 0)

    def consume(self) -> int:
        """Receive the samples that are available, without waiting."""
        return int(library().ring_buffer__consume(self._handle))

    def close(self) -> None:
        """Stop reading."""
        if self._handle:
            library().ring_buffer__free(self._handle)
            self._handle = None
