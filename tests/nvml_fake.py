"""A libnvidia-ml whose answers stand in a table: ``FakeNvml({PLACE: {...}})``.

What the table of a GPU lacks is answered with NVML_ERROR_NOT_SUPPORTED, as drivers do.
"""

NOT_SUPPORTED, NOT_FOUND = 3, 6  # nvmlReturn_t


class FakeNvml:
    """gpus: place -> {call without ``nvmlDeviceGet``, or (call, *arguments): answer}; ``later``:
    what has changed in it when the library is initialised once more.
    """

    def __init__(self, gpus, absent=(), init=0, later=None):
        self.gpus = gpus
        self.later = later or {}
        self.names = list(gpus)
        self.absent = absent  # calls that this driver does not export
        self.init = init
        self.open = 0

    def nvmlInit_v2(self):
        self.open += not self.init
        return self.init

    def nvmlShutdown(self):
        self.open -= 1
        self.gpus = {name: {**own, **self.later.get(name, {})} for name, own in self.gpus.items()}
        return 0

    def __getattr__(self, name):
        if not name.startswith("nvmlDeviceGet") or name in self.absent:
            raise AttributeError(name)
        call = name.removeprefix("nvmlDeviceGet")
        if call.startswith("HandleBy"):
            return self._handle
        if call.startswith("ComputeRunningProcesses"):
            return lambda gpu, count, infos: self._processes(call, gpu, count, infos)
        return lambda gpu, *arguments: self._answer(call, gpu, *arguments)

    def _handle(self, name, handle):
        if name.decode() not in self.names:
            return NOT_FOUND
        handle._obj.value = self.names.index(name.decode()) + 1
        return 0

    def _of(self, gpu):
        assert self.open == 1
        return self.gpus[self.names[gpu.value - 1]]

    def _answer(self, call, gpu, *arguments):
        *numbers, out = arguments
        answers = self._of(gpu)
        value = answers.get((call, *numbers), answers.get(call))
        if value is None:
            return NOT_SUPPORTED
        if isinstance(value, dict):
            for field, number in value.items():
                setattr(out._obj, field, number)
        else:
            out._obj.value = value
        return 0

    def _processes(self, call, gpu, count, infos):
        listed = self._of(gpu).get(call)
        if listed is None:
            return NOT_SUPPORTED
        count._obj.value = len(listed)
        for info, (pid, size_bytes) in zip(infos, listed, strict=False):
            info.pid, info.used = pid, size_bytes
        return 0
