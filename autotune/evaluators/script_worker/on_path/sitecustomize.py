"""Loads autotune's probe into a Python that a tuned command started; then the environment's own sitecustomize.

Python imports a module of this name at its start (see the documentation of `site`), wherever the command started it.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _load_probe() -> None:
    package = os.environ.get("AUTOTUNE_PROBE_PACKAGE")
    directory = os.environ.get("AUTOTUNE_PROBE_DIRECTORY")
    if not package or not directory:
        return
    try:
        if "autotune" not in sys.modules:
            # By its path: the script's own environment need not have it.
            path = os.path.join(package, "__init__.py")
            spec = importlib.util.spec_from_file_location("autotune", path, submodule_search_locations=[package])
            if spec is None or spec.loader is None:
                raise ImportError(path)
            sys.modules["autotune"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules["autotune"])
        from autotune.evaluators.script_worker import probe

        probe.install(directory)
    except Exception as error:  # noqa: BLE001 - the script must start whatever is wrong with the probe
        sys.stderr.write(f"[autotune] the probe can't be loaded: {type(error).__name__}: {error}\n")


def _load_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_load_probe()
_load_next()
