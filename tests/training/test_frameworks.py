"""Real trainings of other frameworks, each captured by one line; skipped where it is not installed.

About 20 s together where all are there, most of it for importing them: they are in no extra that
tests/run.sh installs. `pip install '.[integrations]' accelerate`, then pytest tests/training.
"""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch
from planned_models import on_ranks

import torchcoll
from torchcoll.core.traffic import Traffic

BYTES = 4 * (8 * 4 + 4)  # of a Linear(8, 4) in float32


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


def rows(count):
    return [{"x": torch.ones(8) * i} for i in range(count)]


def gradients(traffic, steps, passes):
    """Each step sends the model's one bucket once for each backward pass that synchronises."""
    for rank in (0, 1):
        for step in range(steps):
            step_calls = [c for c in traffic.calls[rank] if c.step == step]
            sent = [
                c.bytes_in
                for c in step_calls
                if c.collective == "all_reduce" and c.bytes_in >= BYTES
            ]
            assert sent == [BYTES] * passes, (rank, step)


def installed(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("steps", "marked"), [(None, 4), (3, 3)])
def test_hugging_face(tmp_path, steps, marked):
    transformers = installed("transformers")
    installed("accelerate")
    from torchcoll.parts.training.integrations.hugging_face import TrainerCapture

    assert issubclass(TrainerCapture, transformers.TrainerCallback)
    importlib.import_module("transformers.trainer")

    def case():
        arguments = transformers.TrainingArguments(
            output_dir="out",
            use_cpu=True,
            ddp_backend="gloo",
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            max_steps=4,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=2,
            remove_unused_columns=False,
        )
        trainer = transformers.Trainer(
            Model(), arguments, train_dataset=rows(16), callbacks=[TrainerCapture("hf", steps)]
        )
        trainer.train()

    on_ranks(tmp_path, 2, {"it": case})
    traffic = Traffic.load(tmp_path / "hf")
    assert {rank: len(traffic) for rank, traffic in traffic.steps.items()} == {0: marked, 1: marked}
    gradients(traffic, marked, 1)


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path):
    module = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
    lightning = installed(module)
    from torchcoll.parts.training.integrations.lightning import LightningCapture

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(batch["x"])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    def case():
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_steps=3,
            accumulate_grad_batches=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[LightningCapture("pl")],
        )
        trainer.fit(Lit(), torch.utils.data.DataLoader(rows(32), batch_size=1))

    on_ranks(tmp_path, 2, {"it": case})
    traffic = Traffic.load(tmp_path / "pl")
    assert {rank: len(traffic) for rank, traffic in traffic.steps.items()} == {0: 3, 1: 3}
    gradients(traffic, 3, 1)


@pytest.mark.filterwarnings("ignore")
def test_accelerate_needs_no_callback(tmp_path):
    """Its loop is the user's own: see docs/frameworks.md."""
    accelerate = installed("accelerate")

    def case():
        accelerator = accelerate.Accelerator(cpu=True)
        model = Model()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        with torchcoll.capture("acc") as traffic:
            for _ in range(3):
                accelerator.backward(model(torch.ones(2, 8))["loss"])
                optimizer.step()
                optimizer.zero_grad()
                traffic.step()

    on_ranks(tmp_path, 2, {"it": case})
    gradients(Traffic.load(tmp_path / "acc"), 3, 1)
