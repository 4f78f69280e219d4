"""A file system that answers until a file is open, and then never again: to close the file blocks for good.

Source of the messages: include/uapi/linux/fuse.h, version 7.31.
"""

import ctypes
import os
import struct
import threading
from contextlib import contextmanager

_LOOKUP, _GETATTR, _OPEN, _INIT = 1, 3, 14, 26
_IN = struct.Struct("=IIQQIIII")
_OUT = struct.Struct("=IiQ")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_MNT_FORCE, _MNT_DETACH = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def mounted(directory):
    """Mount it at a directory, which has any file that is asked for; needs root."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"silent", os.fsencode(directory), b"fuse", 0, options):
        os.close(device)
        raise OSError(ctypes.get_errno(), "mount")
    server = threading.Thread(target=_serve, args=(device,), daemon=True)
    server.start()
    try:
        yield
    finally:
        _libc.umount2(os.fsencode(directory), _MNT_FORCE)  # ends all waits
        _libc.umount2(os.fsencode(directory), _MNT_DETACH)
        server.join()
        os.close(device)


def _serve(device):
    while True:
        try:
            request = os.read(device, 1 << 17)
        except OSError:  # it is not mounted any more
            return
        _, kind, unique, node, *_ = _IN.unpack_from(request)
        reply = {_INIT: _init, _LOOKUP: _lookup, _GETATTR: _attributes_reply, _OPEN: _open}.get(kind)
        if reply is not None:
            body = reply(node)
            os.write(device, _OUT.pack(_OUT.size + len(body), 0, unique) + body)


def _init(_):
    return struct.pack("=IIIIHHI", 7, 31, 0, 0, 0, 0, 4096) + bytes(40)


def _attributes(node):
    mode = 0o40755 if node == 1 else 0o100644
    return _ATTRIBUTES.pack(node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _lookup(_):
    return struct.pack("=QQQQII", 2, 0, 1, 1, 0, 0) + _attributes(2)


def _attributes_reply(node):
    return struct.pack("=QII", 1, 0, 0) + _attributes(node)


def _open(_):
    return struct.pack("=QII", 1, 0, 0)
