"""The memory that a rank needs in training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Bytes that a rank needs. Activations are an approximation.

    - activations: kept until the backward pass.
    - peak: on top of them, at the begin of the backward pass or in it: logits and their gradient,
      or a layer that is computed again.

    - buffers: whole parameters and gradients of FSDP2 at their peak, DDP's buckets, or DeepSpeed's.
    """

    parameters: float
    gradients: float
    optimizer: float
    buffers: float
    activations: float
    peak: float = 0.0

    @property
    def total(self) -> float:
        kept = self.parameters + self.gradients + self.optimizer + self.buffers
        return kept + self.activations + self.peak
