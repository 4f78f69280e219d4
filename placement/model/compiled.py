"""Compilation to machine code, cached until a source that the code depends on changes, wherever the package is.

numba checks only the source file of a function to see whether its cached machine code is valid, but the code contains,
inlined, functions of other files. So the cache of a module is a folder that is named after a digest of the module and
of all that it imports of these packages, directly or not, and after how much the code is optimised (NUMBA_OPT).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from llvmlite.binding import Linkage, parse_assembly
from numba import config, njit, types, version_info
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

from mltcp.core.machine_code import cache_folder, digest_of, forget_old

_ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(
    rb"^[ ]*(?:from|import)[ ]+((?:placement|mltcp)[.\w]*)(?:[ ]+import[ ]+(\([^)]*\)|.*))?", re.MULTILINE
)

_Function = TypeVar("_Function", bound=Callable)


def sources_of(module: Path, root: Path = _ROOT) -> list[Path]:
    """The files of a module and of all modules of the packages below `root` that it imports, directly or not."""
    found, new = {module}, [module]
    while new:
        more = _imported(new.pop(), root) - found
        found |= more
        new += more
    return sorted(found)


@cache
def _imported(module: Path, root: Path) -> frozenset[Path]:
    """The files of the modules that a module imports. A name that it imports from one may be a module too."""
    files: set[Path] = set()
    for base, names in _IMPORT.findall(module.read_bytes()):
        package = root.joinpath(*base.decode().split("."))
        for each in (package, *(package / name.decode() for name in re.findall(rb"\w+", names))):
            files |= {each.with_name(f"{each.name}.py"), each / "__init__.py"}
    return frozenset(file for file in files if file.is_file())


@cache
def _folder_of(module: Path) -> Path:
    below = _ROOT if module.is_relative_to(_ROOT) else Path(module.anchor)  # a rule of somebody's own
    version = f"{digest_of(below, sources_of(module))}-o{int(config.OPT)}"
    folder = Path(cache_folder("placement", version))
    forget_old("placement", folder)
    return folder


class _Locator(_CacheLocator):
    """Finds the cache of a function by what the code depends on, for numba."""

    def __init__(self, function: Callable, module: str) -> None:
        self._folder = _folder_of(Path(module))
        self._py_file, self._lineno = module, function.__code__.co_firstlineno  # numba's warnings name them

    @classmethod
    def from_function(cls, py_func: Callable, py_file: str) -> _Locator:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return str(self._lineno)


class _Files(CompileResultCacheImpl):
    _locator_classes: ClassVar = [_Locator]


class _CodeCache(FunctionCache):
    """The cache of a function, which holds both of its versions."""

    _impl_class = _Files

    def __init__(self, function: Callable, version: str) -> None:
        self._version = version
        super().__init__(function)

    def _index_key(self, *arguments: Any) -> tuple:
        return (self._version, *super()._index_key(*arguments))


class _LinkedCode(JITCodeLibrary):
    """The code of a function for its compiled callers, each of which optimises a copy of it.

    Nothing runs this one: it is simplified, but neither optimised in full nor made into machine code, which would be a
    third of its compilation.
    """

    _final_module: Any

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager(
            opt=0, loop_vectorize=False, slp_vectorize=False, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._shared_module = code = self._final_module
        for function in code.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"
        # numba sets the addresses of environments by name.
        environments = (str(v) for v in code.global_variables if v.name.startswith("_ZN08NumbaEnv"))
        empty = str(self._codegen._create_empty_module(self.name))
        self._final_module = parse_assembly("\n".join((empty, *environments)))
        super()._finalize_final_module()


class _LinkedCompiler(Compiler):
    """Compiles a function for its compiled callers."""

    def __init__(self, typing: Any, target: Any, library: Any, *arguments: Any) -> None:
        linked = library or _LinkedCode(target.codegen(), "linked")
        linked.enable_object_caching()
        super().__init__(typing, target, linked, *arguments)


_INNER_COMPILER = _LinkedCompiler if tuple(version_info[:2]) < (0, 69) else Compiler
"""Later versions of numba may do this otherwise inside; they compile all in full until this was tried with them."""


class Compiled:
    """A function that Python and compiled code may call; each is compiled when it is first needed.

    Compiled code calls a version without the entry for Python, which would be a third of its compilation.

    Attributes:
        py_func: the function as it is written.

    Args:
        function: to compile.
        allocates: whether it allocates arrays.
    """

    def __init__(self, function: Callable, allocates: bool) -> None:
        update_wrapper(self, function)
        self.py_func = function
        # No function is passed as a value to another, so that none has an entry for that.
        options = {"_nrt": allocates, "forceinline": not allocates, "no_cfunc_wrapper": True}
        self._entry = _dispatcher(function, "entry", **options)
        self._inner = _dispatcher(
            function, "inner", **options, no_cpython_wrapper=True, pipeline_class=_INNER_COMPILER
        )

    def __call__(self, *arguments: Any) -> Any:
        """Call it from Python."""
        return self._entry(*arguments)

    @property
    def _numba_type_(self) -> types.Dispatcher:
        """The version that compiled code calls; numba asks for it by this name."""
        return types.Dispatcher(self._inner)


def compiled(function: _Function) -> _Function:
    """Compile when first called, once a machine and version of the package.

    The function may neither allocate nor return arrays, so that numba need not count references. It is inlined into its
    callers, because passing a state of many arrays costs more than most functions here do. Both together are a factor
    of 30.
    """
    return cast(_Function, Compiled(function, allocates=False))


def compiled_with_arrays(function: _Function) -> _Function:
    """Compile as `compiled` does, for a function that allocates arrays."""
    return cast(_Function, Compiled(function, allocates=True))


def _dispatcher(function: Callable, version: str, **options: Any) -> Callable:
    dispatcher = njit(error_model="numpy", nogil=True, **options)(function)
    if dispatcher is not function:  # it is where compilation is disabled
        dispatcher._cache = _CodeCache(function, version)
    return cast(Callable, dispatcher)
