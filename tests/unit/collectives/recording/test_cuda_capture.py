"""The thread that asks CUDA whether operations are complete asks in a way that disturbs no capture of a graph."""

import ctypes
import subprocess
import threading

import pytest

from collectives.recording.completion import CompletionThread
from tests.eventually import eventually

RUNTIME = """
#include <pthread.h>
static pthread_t last;
static int mode = -1;
int cudaThreadExchangeStreamCaptureMode(int *new_mode) { last = pthread_self(); mode = *new_mode; return 0; }
int mode_of_the_last(void) { return mode; }
unsigned long thread_of_the_last(void) { return last; }
"""


@pytest.fixture
def runtime(tmp_path):
    """A library with the name of CUDA's runtime that remembers who called it, loaded into this process."""
    source, library = tmp_path / "runtime.c", tmp_path / "libcudart.so.13"
    source.write_text(RUNTIME)
    subprocess.run(["clang", "-shared", "-fPIC", "-o", library, source], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.thread_of_the_last.restype = ctypes.c_ulong
    yield loaded
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(loaded._handle))


class Complete:
    def is_completed(self):
        return True

    def wait(self, timeout=None):
        return True


def test_the_mode_is_relaxed_on_the_thread_that_polls_and_only_then(runtime):
    thread, noted = CompletionThread(), []
    thread.watch(Complete(), noted.append)
    eventually(lambda: len(noted) == 1)
    assert runtime.mode_of_the_last() == -1
    thread.watch(Complete(), noted.append, by_polling=True)
    eventually(lambda: len(noted) == 2)
    polling = next(each for each in threading.enumerate() if each.name == "mltcp-completion")
    assert (runtime.mode_of_the_last(), runtime.thread_of_the_last()) == (2, polling.ident)
    thread.close()
