"""torchcoll inside a program: measure the sizes of a model's gradients.

    torchrun --nproc-per-node 2 examples/python_api.py

The same Session as the command line runs it, so the numbers are the same. Inside training code the
process group that is there is used, and left as it was found.
"""

import torch
import torch.distributed as dist

import torchcoll


def main() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 10))
    sizes = sorted({p.numel() * p.element_size() for p in model.parameters()})

    spec = torchcoll.Spec(collectives="all_reduce", sizes=sizes, iters=20)
    run = torchcoll.run(spec, on_case=lambda result: print(result.case.describe(), result.status))
    if run is not None:  # rank 0
        torchcoll.show(run)
        frame = torchcoll.table(run)
        print(frame[["size_bytes", "first_call_ns", "median_ns", "busbw_gbps"]])

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
