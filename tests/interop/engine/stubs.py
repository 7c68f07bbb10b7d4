"""CPU-only import shim for the real ``tokenspeed`` PyPI wheel.

``import stubs; stubs.install()`` BEFORE the first ``tokenspeed`` import.

Only modules that cannot exist on a CPU-only box are replaced, and only when
the real distribution is absent: every submodule of a stubbed top-level package
is a lazy object whose attributes are inert placeholder classes.  Nothing that
computes request content (inputs / mrope / hash / io_struct / sampling_params /
embedder.pad_input_tokens) goes through a placeholder.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

# GPU-only or heavyweight distributions. A top-level name is stubbed only when
# it is not installed for real, so a GPU box keeps the genuine packages.
STUB_TOPLEVEL = (
    "tokenspeed_kernel",
    "torch_memory_saver",
    "tokenspeed_triton",
    "triton",
    "mooncake",
    "flashinfer",
    "xgrammar",
    "torchvision",
)
STUBBED: list[str] = []


class _PlaceholderMeta(type):
    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _make(f"{cls.__name__}.{name}")

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __iter__(cls):
        return iter(())

    def __bool__(cls):
        return False


def _make(name):
    ns = {
        "__init__": lambda self, *a, **k: None,
        "__call__": lambda self, *a, **k: None,
        "__class_getitem__": classmethod(lambda cls, item: cls),
    }
    return _PlaceholderMeta(name.rsplit(".", 1)[-1], (), ns)


class _StubModule(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = _make(name)
        setattr(self, name, value)
        return value


class _CpuPlatform:
    """What ``tokenspeed_kernel.platform.current_platform()`` must answer."""

    device_type = "cpu"
    name = "cpu"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith(("is_", "has_", "supports_")):
            return False
        return None


def _fill(mod):
    if mod.__name__ == "tokenspeed_kernel.platform":
        plat = _CpuPlatform()
        mod.current_platform = lambda: plat
        mod.pdl_enabled = lambda *a, **k: False
    elif mod.__name__ == "tokenspeed_kernel.compile_monitor":
        mod.compile_stats = lambda *a, **k: None
    elif mod.__name__ == "tokenspeed_kernel.profiling":
        mod.proton_available = lambda: False


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".", 1)[0] in STUBBED:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _StubModule(spec.name)

    def exec_module(self, module):
        _fill(module)


def install(extra: tuple[str, ...] = ()) -> list[str]:
    """Install the finder once; returns the top-level names being stubbed."""
    if not STUBBED:
        for name in (*STUB_TOPLEVEL, *extra):
            if importlib.util.find_spec(name) is None:
                STUBBED.append(name)
        sys.meta_path.insert(0, _Finder())
    return list(STUBBED)
