"""The command that runs again what a result file ran, and what of it another machine cannot do."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchcoll.core.case import Case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnavailableError, UnusableError, UsageError
from torchcoll.core.result import Run
from torchcoll.core.spec import BUFFERS, MODES
from torchcoll.core.units import counted, format_size
from torchcoll.core.variables import MASK

# Variables of these prefixes change how a collective runs. What launchers set is not among them.
_SETTINGS = (
    *("NCCL_", "RCCL_", "CCL_", "FI_", "UCX_", "GLOO_", "TORCH_GLOO_", "TORCH_NCCL_", "TP_"),
    *("OMP_NUM_THREADS", "KMP_", "CUDA_DEVICE_MAX_CONNECTIONS", "HSA_", "I_MPI_", "ZE_"),
)
# torchrun sets these itself, or they belong to one run.
_OF_LAUNCHERS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG_FILE", "GLOO_SOCKET_IFNAME"}
# Options of one run, which the rerun sets itself, and whether a value follows.
_OWN_OPTIONS = {
    **dict.fromkeys(("-J", "--output", "--resume", "--label", "--metrics"), True),
    **dict.fromkeys(("--no-output", "--dry-run", "--quiet"), False),
}


@dataclass(frozen=True)
class Recipe:
    """How to run a file again.

    ranks, hosts: of the file. device: cpu, cuda, xpu. backends: in their order. arguments: of the
    module, without output and labels. variables: settings, as they were. notes: what cannot be run
    as it was, a sentence each.
    """

    ranks: int
    hosts: int
    device: str
    backends: tuple[str, ...]
    module: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def command(self, launcher: Sequence[str] = ()) -> list[str]:
        """The words of the command. launcher: words in place of torchrun and its options."""
        if not launcher:
            launcher = ["torchrun", "--nproc-per-node", str(self.ranks // max(1, self.hosts))]
            if self.hosts > 1:
                launcher += ["--nnodes", str(self.hosts), "--node-rank", "NODE_RANK"]
                launcher += ["--master-addr", "FIRST_HOST"]
            launcher += ["-m"]
        return [*launcher, f"torchcoll.{self.module}", *self.arguments]


def recipe_of(run: Run) -> Recipe:
    """The recipe of a run that torchcoll made, or of another tool's run as torchcoll would make it.

    Raises UsageError for a file that does not say what it ran, for one of torchcoll.pairs, and for
    another tool's run with settings that torchcoll does not have.
    """
    cases = [result.case for result in run.results]
    if not cases:
        raise UnusableError("file", f"{run.path} without cases", "a run with at least one case")
    ranks = max(result.ranks for result in run.results)
    if not ranks:
        action = "Give it with --ranks when importing: torchcoll import FILE --ranks N."
        raise UnusableError(
            "file", f"{run.path} without a number of ranks", "one that has it", action
        )
    hosts = len({m["host"] for m in run.members if m.get("host")}) or 1
    if "threshold" in run.header:
        action = "Run torchcoll.pairs again, and compare the two answers of torchcoll pairs."
        raise UnusableError(
            "file", f"{run.path} of torchcoll.pairs", "a run of collectives", action
        )
    variables, notes = _settings((run.header.get("environment") or {}).get("variables") or {})
    if run.header.get("argv") is None or run.source:
        recipe = _foreign_recipe(run, ranks, hosts)
        return replace(recipe, variables=variables, notes=(*recipe.notes, *notes))
    spec = run.header.get("spec") or {}
    argv = _without_own(list(map(str, run.header["argv"])))
    asked = [str(name) for name in spec.get("collectives") or ()]
    named = any(argument.split("=")[0] == "--collectives" for argument in argv)
    module = "suite" if named or len(asked) != 1 else COLLECTIVES[asked[0]].module
    if spec.get("points"):
        notes.append("the traffic file of --traffic must be where it was")
    return Recipe(
        ranks,
        hosts,
        cases[0].device,
        tuple(dict.fromkeys(case.backend for case in cases)),
        module,
        tuple(argv),
        variables,
        tuple(notes),
    )


def _foreign_recipe(run: Run, ranks: int, hosts: int) -> Recipe:
    """What torchcoll would run to measure the cases of a file without a command of torchcoll.

    Raises UnusableError for settings that torchcoll does not have or cannot combine.
    """
    cases = [result.case for result in run.results]
    names = list(dict.fromkeys(case.collective for case in cases))
    sizes = sorted({case.size_bytes for case in cases if case.size_bytes})
    arguments = [] if len(names) == 1 else ["--collectives", ",".join(names)]
    if sizes:
        arguments += ["--sizes", ",".join(map(format_size, sizes))]
    dtypes = list(dict.fromkeys(case.dtype for case in cases if case.dtype))
    if dtypes and dtypes != ["float32"]:
        arguments += ["-d", ",".join(dtypes)]
    ops = list(dict.fromkeys(case.op for case in cases if case.op))
    if ops and ops != ["sum"]:
        arguments += ["-o", ",".join(ops)]
    placements = {case.in_place for case in cases if case.in_place is not None}
    if placements:
        arguments += ["--in-place", "both" if len(placements) > 1 else str(int(placements.pop()))]
    arguments += _buffer_options(cases) + _mode_option(cases)
    note = "the file has no command: it is made from the cases, with the usual calls"
    if run.source:
        note = (
            f"the file is of {run.source.get('tool') or 'another tool'}: torchcoll measures the "
            "same cases through torch.distributed, with its own clock and calls"
        )
    return Recipe(
        ranks,
        hosts,
        cases[0].device,
        tuple(dict.fromkeys(case.backend for case in cases)),
        COLLECTIVES[names[0]].module if len(names) == 1 else "suite",
        tuple(arguments),
        notes=(note,),
    )


def _buffer_options(cases: Sequence[Case]) -> list[str]:
    """Options for the alignment and the registration of buffers (-u and -R of nccl-tests)."""
    offsets = sorted({case.misalign_bytes for case in cases})
    buffers = list(dict.fromkeys(case.buffers for case in cases))
    implementations = dict.fromkeys(case.implementation for case in cases)
    if len(offsets) > 1:  # -u counts elements, so each dtype has its own number of bytes
        texts = " and ".join(counted(offset, "byte") for offset in offsets)
        raise _not_in_one_run(f"buffers misaligned by {texts}", "one offset for all cases")
    if len(buffers) > 1 or buffers[0] not in BUFFERS:
        expected = f"one of {', '.join(BUFFERS)} for all cases"
        raise _not_in_one_run(f"{' and '.join(buffers)} buffers", expected)
    if foreign := [name for name in implementations if name.startswith("nccl-tests-")]:
        raise _not_in_one_run(f"collectives of {foreign[0]}", "collectives of the library")
    options = ["--misalign", str(offsets[0])] if offsets[0] else []
    return options + (["--buffers", buffers[0]] if buffers[0] != "default" else [])


def _mode_option(cases: Sequence[Case]) -> list[str]:
    """``--mode``, unless the file has the default of its device or does not name its mode."""
    modes = list(dict.fromkeys(case.mode for case in cases if case.mode != "unknown"))
    if foreign := [mode for mode in modes if mode not in MODES]:
        raise _not_in_one_run(f"mode {foreign[0]!r}", f"one of {', '.join(MODES)}")
    if len(modes) > 1:
        raise _not_in_one_run(f"modes {' and '.join(modes)}", "one mode for all cases")
    default = "synchronized" if cases[0].device == "cpu" else "back-to-back"
    return ["--mode", modes[0]] if modes and modes[0] != default else []


def _not_in_one_run(actual: str, expected: str) -> UnusableError:
    """The error for a file with settings that no run of torchcoll has."""
    return UnusableError("file", f"{actual}, which torchcoll cannot run again", expected)


def _without_own(argv: Sequence[str]) -> list[str]:
    """The arguments without those that belong to one run (output, labels)."""
    kept, skip = [], False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if skip:
            skip = False
        elif name in _OWN_OPTIONS:
            skip = _OWN_OPTIONS[name] and not equals
        elif not re.match(r"-J.", argument):
            kept.append(argument)
    return kept


def _settings(recorded: Mapping[str, str]) -> tuple[dict[str, str | None], list[str]]:
    """The variables to set as they were, and notes on those that cannot be."""
    variables: dict[str, str | None] = {}
    masked = []
    for name, value in sorted(recorded.items()):
        if not name.startswith(_SETTINGS) or name in _OF_LAUNCHERS:
            continue
        if MASK in value:
            masked.append(name)
        else:
            variables[name] = value
    notes = [f"the values of {', '.join(masked)} are masked in the file"] if masked else []
    return variables, notes


def unset_settings(recipe: Recipe, environ: Mapping[str, str]) -> Recipe:
    """The recipe, also without the settings of this shell that the file did not have."""
    extra = {
        name: None
        for name in sorted(environ)
        if name.startswith(_SETTINGS)
        and name not in _OF_LAUNCHERS
        and name not in recipe.variables
        and name != "OMP_NUM_THREADS"
    }
    return replace(recipe, variables={**recipe.variables, **extra})


def on_this_machine(recipe: Recipe, usable: Collection[str], accelerators: int) -> Recipe:
    """The part of the recipe that a machine with these backends can run.

    usable: names of backends that can be used. accelerators: how many devices of the file's kind
    there are, without meaning for cpu. Raises UnavailableError if nothing can be run here, and
    UsageError if it takes several hosts.
    """
    notes = list(recipe.notes)
    lacking = [name for name in recipe.backends if name not in usable]
    backends = tuple(name for name in recipe.backends if name in usable)
    if not backends or (recipe.device != "cpu" and not accelerators):
        what = " and ".join(lacking) if lacking else recipe.device
        raise UnavailableError(
            "this machine",
            f"no {what} on {recipe.device}" if lacking else f"no {what}",
            f"what the file ran on ({counted(recipe.ranks, 'rank')})",
            "torchcoll again FILE --dry-run prints the command.",
        )
    arguments = recipe.arguments
    if lacking:
        notes.append(f"not run, because it cannot be used here: {', '.join(lacking)}")
        arguments = (*arguments, "--backend", ",".join(backends))
    ranks = recipe.ranks
    if recipe.hosts > 1:
        raise UsageError(
            "hosts",
            1,
            f"{recipe.hosts}, as in the file",
            "Give the launcher: torchcoll again FILE --launcher 'srun --nodes "
            f"{recipe.hosts} --ntasks-per-node {ranks // recipe.hosts} python -m'",
        )
    if recipe.device != "cpu" and ranks > accelerators:
        notes.append(f"{counted(accelerators, 'device')} here, so {accelerators} of {ranks} ranks")
        ranks = accelerators
    return replace(recipe, ranks=ranks, backends=backends, arguments=arguments, notes=tuple(notes))
