"""The memory that a rank needs in training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Bytes that a rank needs. Activations are an approximation.

    - buffers: whole parameters and gradients of FSDP2 at their peak, or DDP's buckets.
    """

    parameters: float
    gradients: float
    optimizer: float
    buffers: float
    activations: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.buffers + self.activations
