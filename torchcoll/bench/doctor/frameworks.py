"""What torch and Intel's extensions say of themselves."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from torchcoll.bench.launcher import Launch
from torchcoll.bench.placement import device_facts, pci_facts

BINDINGS = "oneccl_bindings_for_pytorch"
IPEX = "intel_extension_for_pytorch"
_IMPORT_LIMIT_S = 60  # IPEX took 6 to 18 s


def torch_facts(torch: Any, launch: Launch) -> dict[str, Any]:
    """version; cuda, hip, xpu (what it was built with, or None); built (backend -> bool); devices
    (kind -> a dict each); why (kind -> what torch says where it finds none); threads; nccl.
    """
    dist = torch.distributed
    facts: dict[str, Any] = {
        "version": str(torch.__version__),
        **{name: getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")},
        "built": {},
        "devices": {},
        "why": {},
        "threads": torch.get_num_threads(),
        "nccl": _nccl(torch),
    }
    for name in ("gloo", "nccl", "xccl", "mpi", "ucc"):
        ask = getattr(dist, f"is_{name}_available", None)
        facts["built"][name] = bool(dist.is_available() and ask and ask())
    for kind in ("cuda", "xpu"):
        facts["devices"][kind], facts["why"][kind] = _devices(torch, kind, launch)
    return facts


def _nccl(torch: Any) -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except Exception:  # AttributeError on a CPU build, RuntimeError without the library
        return None


def _devices(torch: Any, kind: str, launch: Launch) -> tuple[list[dict[str, Any]], str]:
    """The devices of one kind, and what went wrong with them."""
    module = getattr(torch, kind, None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            count = module.device_count() if module and module.is_available() else 0
        except Exception as error:
            return [], _first_line(error)
        # torch warns of a driver that is too old, and only says False.
    text = next((_first_line(w.message) for w in said), "")
    devices = []
    for index in range(count):
        facts = device_facts(torch, f"{kind}:{index}")
        pci = pci_facts(facts["pci_id"]) if facts.get("pci_id") else {}
        devices.append({"device": f"{kind}:{index}", **facts, **pci})
    if devices:
        mine = own_device(launch, devices)
        mine["error"] = _exercise(torch, mine["device"])
    return devices, text


def own_device(launch: Launch, devices: list[dict[str, Any]]) -> dict[str, Any]:
    """The device of this rank: by local rank; the only one where each rank sees its own alone."""
    return devices[launch.local_rank % len(devices)]


def _exercise(torch: Any, device: str) -> str:
    """One sum on the device: a list of devices does not tell whether any works."""
    try:
        right = torch.ones(8, device=device).sum().item() == 8
        return "" if right else "1 + 1 + ... is not right there"
    except Exception as error:
        return _first_line(error)


def module_facts(run: Callable[..., tuple[int, str, str]]) -> dict[str, dict[str, Any]]:
    """version and error of Intel's extensions, those installed alone. They are imported in a child:
    that takes seconds, prints, and with a foreign torch dies with AttributeError.
    """
    found = {}
    for name in (IPEX, BINDINGS):
        try:
            if find_spec(name) is None:
                continue
        except (ImportError, ValueError):
            continue
        found[name] = _imported(name, run)
    return found


def _imported(name: str, run: Callable[..., tuple[int, str, str]]) -> dict[str, Any]:
    program = (
        f"import json, torch, {name} as module\n"
        "ccl = torch.distributed.is_backend_available('ccl')\n"
        "facts = {'version': getattr(module, '__version__', None), 'ccl': ccl, 'error': ''}\n"
        "print('\\n' + json.dumps(facts))\n"
    )
    code, out, err = run([sys.executable, "-c", program], _IMPORT_LIMIT_S)
    try:
        return dict(json.loads(out.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        error = lines[-1] if lines else f"exit code {code}"
        return {"version": _installed(name), "ccl": False, "error": error}


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return None


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
