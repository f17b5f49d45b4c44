"""Hand-made NCCL topology files, as text."""

from __future__ import annotations


def system(*cpus: str, version: int = 1) -> str:
    return f'<system version="{version}">\n' + "\n".join(cpus) + "\n</system>\n"


def cpu(numa: int, *inside: str, affinity: str = "ffff", more: str = "") -> str:
    return f'<cpu numaid="{numa}" affinity="{affinity}" {more}>' + "".join(inside) + "</cpu>"


def pci(busid: str, *inside: str, kind: str = "0x060400", link: str = "16 GT/s", width=16) -> str:
    attributes = f'busid="{busid}" class="{kind}" link_speed="{link}" link_width="{width}"'
    return f"<pci {attributes}>{''.join(inside)}</pci>"


def gpu(dev: int, *links: str, busid: str = "", sm: int = 80, **how) -> str:
    own = f'<gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">{"".join(links)}</gpu>'
    return pci(busid or f"0000:{dev:x}0:00.0", own, kind="0x030200", **how)


def nvlink(target: str | int, count: int, tclass: str = "0x030200") -> str:
    to = f"0000:{target:x}0:00.0" if isinstance(target, int) else target
    return f'<nvlink target="{to}" count="{count}" tclass="{tclass}"/>'


def switches(*counts: int) -> str:
    ends = enumerate(counts)
    return "".join(nvlink(f"0000:f{n}:00.0", count, "0x068000") for n, count in ends)


def nic(name: str, dev: int, speed: int = 200000, more: str = "") -> str:
    net = f'<net name="{name}" dev="{dev}" speed="{speed}" port="1" gdr="1" {more}/>'
    return f"<nic>{net}</nic>"


def hgx(
    gpus: int = 8, sm: int = 90, links: int = 18, gbits: int = 400, nics: int = 8, more: str = ""
) -> str:
    """A host with NVSwitches: two CPUs, below each half of the GPUs and interfaces, PCI Gen5."""
    halves: list[list[str]] = [[], []]
    for dev in range(gpus):
        inside = [gpu(dev, nvlink("0000:f0:00.0", links, "0x068000"), sm=sm, link="32.0 GT/s PCIe")]
        if dev < nics:
            own = nic(f"mlx5_{dev}", dev, 1000 * gbits, more)
            busid = f"0000:{dev:x}8:00.0"
            inside.append(pci(busid, own, kind="0x020700", link="32.0 GT/s PCIe"))
        halves[2 * dev // gpus].append(pci(f"0000:{dev:x}1:00.0", *inside, link="32.0 GT/s PCIe"))
    intel = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'
    return system(*(cpu(numa, *half, more=intel) for numa, half in enumerate(halves)))
