"""The command that runs again what a result file ran, and what of it another machine cannot do."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torchcoll.core.case import FIELDS, MODES, Case
from torchcoll.core.collectives import COLLECTIVES
from torchcoll.core.errors import UnavailableError, UnusableError, UsageError
from torchcoll.core.result import Run
from torchcoll.core.run_facts import hosts_of
from torchcoll.core.spec import Spec
from torchcoll.core.traffic_spec import OF_POINTS
from torchcoll.core.units import counted, format_ranges, format_size
from torchcoll.core.variables import MASK, SETTINGS, Name, command_line, kind_of, named
from torchcoll.libraries.known_variables import names_file
from torchcoll.questions.check.limits import MOST_OF_A_HOST

# torchrun sets these itself, or they belong to one run.
_OF_LAUNCHERS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG_FILE", "GLOO_SOCKET_IFNAME"}
# Options of one run, which the rerun sets itself, and whether a value follows.
_OWN_OPTIONS = {
    **dict.fromkeys(("-J", "--output", "--resume", "--label", "--metrics"), True),
    "--rendezvous-file": True,
    **dict.fromkeys(("--no-output", "--dry-run", "--quiet"), False),
}


@dataclass(frozen=True)
class Recipe:
    """How to run a file again.

    ranks, hosts: of the file. device: cpu, cuda, xpu. backends: in their order. arguments: of the
    module, without output and labels. variables: settings, as they were. left_out: settings of the
    file that name files or code, which are not set. notes: what cannot be run as it was, a sentence
    each.
    """

    ranks: int
    hosts: int
    device: str
    backends: tuple[str, ...]
    module: str
    arguments: tuple[str, ...]
    variables: Mapping[Name, str | None] = field(default_factory=dict)
    left_out: tuple[Name, ...] = ()
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

    def text(self, launcher: Sequence[str] = ()) -> str:
        """The command with its variables, as it can be typed."""
        return command_line(self.command(launcher), self.variables)


def recipe_of(run: Run, trust: bool = False) -> Recipe:
    """The recipe of a run that torchcoll made, or of another tool's run as torchcoll would make it.

    trust: also set the variables of the file that name files, and so may load code.
    Raises UsageError for a file that does not say what it ran, for one of torchcoll.pairs, and for
    another tool's run with settings that torchcoll does not have.
    """
    cases = [result.case for result in run.results]
    if not cases:
        raise UnusableError("file", f"{run.path} without cases", "a run with at least one case")
    # A case in sub-groups has the ranks of its sub-group.
    ranks = max(result.ranks for result in run.results)
    if any(map(_group_rule, cases)):
        ranks = max(ranks, run.ranks)
    if not ranks:
        action = "Give it with --ranks when importing: torchcoll convert FILE --ranks N."
        raise UnusableError(
            "file", f"{run.path} without a number of ranks", "one that has it", action
        )
    hosts = hosts_of(run)
    if "threshold" in run.header:
        action = "Run torchcoll.pairs again, and compare the two answers of torchcoll pairs."
        raise UnusableError(
            "file", f"{run.path} of torchcoll.pairs", "a run of collectives", action
        )
    variables, notes = _settings(run.environment.get("variables") or {})
    left_out = tuple(n for n, v in variables.items() if not trust and names_file(n, v))
    settings = {name: value for name, value in variables.items() if name not in left_out}
    if left_out:
        names = ", ".join(left_out)
        text = f"not set, for they name files or code: {names}"
        notes.append(f"{text}. If you trust the file: --trust")
    if run.source and not hosts and ranks > MOST_OF_A_HOST:
        notes.append(
            f"{ranks} ranks on one host, as the file names no hosts; on 2 hosts: --launcher 'srun "
            f"--nodes 2 --ntasks-per-node {ranks // 2} python -m'"
        )
    if run.header.get("argv") is None or run.source:
        recipe = _foreign_recipe(run, ranks, hosts or 1)
        notes = [*recipe.notes, *notes]
        return replace(recipe, variables=settings, left_out=left_out, notes=tuple(notes))
    spec = run.header.get("spec") or {}
    argv = _without_own(list(map(str, run.header["argv"])))
    asked = [str(name) for name in spec.get("collectives") or ()]
    named = any(argument.split("=")[0] == "--collectives" for argument in argv)
    module = "suite" if named or len(asked) != 1 else COLLECTIVES[asked[0]].module
    if spec.get("points"):
        notes.append("the traffic file of --traffic must be where it was")
    return Recipe(
        ranks,
        hosts or 1,
        cases[0].device,
        tuple(dict.fromkeys(case.backend for case in cases)),
        module,
        tuple(argv),
        settings,
        left_out,
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
    if run.source:
        arguments += _case_options(cases)
        calls = sorted({r.reported.calls for r in run.results if r.reported and r.reported.calls})
        instead = f", not the {format_ranges(calls)} of the file" if calls else ""
        note = (
            f"the file is of {run.source.get('tool') or 'another tool'}: torchcoll measures the "
            "same cases through torch.distributed, with its own clock and as many calls as it "
            f"needs{instead}"
        )
    else:
        spec = run.header.get("spec") or {}
        of_cases = (*OF_POINTS, "mode")
        arguments += _options({n: spec[n] for n in FIELDS if n in spec and n not in of_cases})
        note = (
            "the file is of a run from Python and has no command: the command is made from its "
            "cases and settings"
        )
    arguments += _call_options(cases)
    return Recipe(
        ranks,
        hosts,
        cases[0].device,
        tuple(dict.fromkeys(case.backend for case in cases)),
        COLLECTIVES[names[0]].module if len(names) == 1 else "suite",
        tuple(arguments),
        notes=(note,),
    )


def _case_options(cases: Sequence[Case]) -> list[str]:
    """Options for the roots, buffers, implementation and sub-groups of another tool's cases.

    Raises UnusableError for settings that differ from case to case, or that torchcoll does not
    have.
    """
    offsets = sorted({case.misalign_bytes for case in cases})
    buffers = list(dict.fromkeys(case.buffers for case in cases))
    implementations = list(dict.fromkeys(case.implementation for case in cases))
    if len(offsets) > 1:  # -u counts elements, so each dtype has its own number of bytes
        texts = " and ".join(counted(offset, "byte") for offset in offsets)
        raise _not_in_one_run(f"buffers misaligned by {texts}", "one offset for all cases")
    known_buffers = FIELDS["buffers"].choices
    if len(buffers) > 1 or buffers[0] not in known_buffers:
        expected = f"one of {', '.join(known_buffers)} for all cases"
        raise _not_in_one_run(f"{' and '.join(buffers)} buffers", expected)
    if foreign := [name for name in implementations if name.startswith("nccl-tests-")]:
        raise _not_in_one_run(f"collectives of {foreign[0]}", "collectives of the library")
    reuse = _shared("buffer reuse", [case.buffer_reuse for case in cases])
    if reuse == "rotate" and any(case.mode == "graph" for case in cases):
        expected = "the same buffers in every call, or no graphs"
        raise _not_in_one_run("graphs with rotating buffers", expected)
    placements = {case.in_place for case in cases if case.in_place is not None}
    rules = [_group_rule(case) or "one group" for case in cases]
    return _options(
        {
            "in_place": "both" if len(placements) > 1 else next(iter(placements), None),
            "roots": tuple(sorted({case.root for case in cases if case.root is not None})) or (0,),
            "misalign_bytes": offsets[0],
            "buffers": buffers[0],
            "buffer_reuse": reuse or "same",
            "implementation": _shared("implementation", implementations),
            "coalesce": int(_shared("coalesce", [str(case.coalesce) for case in cases])),
            "groups": _shared("grouping", rules).replace("one group", "") or None,
        }
    )


def _call_options(cases: Sequence[Case]) -> list[str]:
    """Options for how calls follow each other. Raises UnusableError as ``_case_options`` does.

    The default of ``--mode`` depends on the device and the buffers, so the option is always given:
    the command then means the same on every machine.
    """
    modes = [case.mode for case in cases]
    if foreign := [mode for mode in modes if mode not in (*MODES, "unknown")]:
        raise _not_in_one_run(f"mode {foreign[0]!r}", f"one of {', '.join(MODES)}")
    mode = _shared("mode", modes)
    kinds = ["asynchronous" if case.asynchronous else "synchronous" for case in cases]
    options = ["--mode", mode] if mode else []
    is_async = _shared("kind of calls", kinds) == "asynchronous"
    return [*options, "--async"] if is_async else options


def _shared(name: str, values: Iterable[str]) -> str:
    """The value that all cases have where it is not unknown; '' if it is unknown in all cases.

    name: of the setting, for the error. Raises UnusableError for several values.
    """
    different = dict.fromkeys(value for value in values if value != "unknown")
    if len(different) > 1:
        actual = f"cases that differ in {name} ({', '.join(different)})"
        raise _not_in_one_run(actual, f"one {name} for all cases")
    return next(iter(different), "")


# The sub-groups of a case as ``--groups`` takes them, with the number of the sub-group after it.
_GROUP_RULE = re.compile(r"((?:mod|div):\d+|[\d,]+(?:;[\d,]+)+)(?:/\d+)?")


def _group_rule(case: Case) -> str:
    """``mod:2`` for the sub-group ``mod:2/0``; '' without sub-groups, and for the name of a
    communicator in another tool, which does not say which ranks are in it.
    """
    match = _GROUP_RULE.fullmatch(case.group or "")
    return match[1] if match else ""


def _options(values: Mapping[str, Any]) -> list[str]:
    """Options for the fields of a Spec that do not have their default value."""
    defaults = {field.name: field.default for field in fields(Spec)}
    options = []
    for name, value in values.items():
        if isinstance(value, list):
            value = tuple(value)
        if value == defaults[name]:
            continue
        options.append(f"--{FIELDS[name].flag}")
        if isinstance(value, tuple):
            options.append(",".join(map(str, value)))
        elif FIELDS[name].takes_value:
            options.append(str(int(value) if isinstance(value, bool) else value))
    return options


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


def _settings(recorded: Mapping[str, str]) -> tuple[dict[Name, str], list[str]]:
    """The variables to set as they were, and notes on those that cannot be."""
    variables: dict[Name, str] = {}
    masked = []
    for name, value in sorted(named(recorded).items()):
        if kind_of(name) != SETTINGS or name in _OF_LAUNCHERS:
            continue
        if MASK in value:
            masked.append(name)
        else:
            variables[name] = value
    notes = [f"the values of {', '.join(masked)} are masked in the file"] if masked else []
    return variables, notes


def unset_settings(recipe: Recipe, environ: Mapping[str, str]) -> Recipe:
    """The recipe, also without the settings of this shell that the file did not have. Those that
    the recipe leaves out stay as this shell has them.
    """
    kept = {*_OF_LAUNCHERS, *recipe.variables, *recipe.left_out, "OMP_NUM_THREADS"}
    settings = [name for name in sorted(named(environ)) if kind_of(name) == SETTINGS]
    extra = {name: None for name in settings if name not in kept}
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
