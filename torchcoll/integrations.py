"""Runs and findings in an experiment tracker: Weights & Biases, MLflow."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torchcoll
from torchcoll.core.display import Displayed
from torchcoll.core.errors import UsageError


def log_wandb(finding: Displayed, tracker: Any, name: str = "torchcoll") -> None:
    """Log a finding to ``tracker``, a run of ``wandb.init()``: the table ``NAME/rows``, the image
    ``NAME/picture`` and the summary ``NAME/answer``. Raises UnavailableError without matplotlib.
    """
    import wandb

    tracker.log({f"{name}/rows": wandb.Table(dataframe=torchcoll.table(finding))})
    if finding.answer:
        tracker.summary[f"{name}/answer"] = finding.answer.text
    with tempfile.TemporaryDirectory() as folder:
        for picture in _pictures(finding, folder):
            tracker.log({f"{name}/picture": wandb.Image(picture)})


def log_mlflow(finding: Displayed, name: str = "torchcoll") -> None:
    """Log a finding to the active run of MLflow: ``NAME/rows.json`` for ``mlflow.load_table``,
    ``NAME/picture.png``, and a tag NAME with its sentence. Raises UnavailableError without
    matplotlib.
    """
    import mlflow

    mlflow.log_table(torchcoll.table(finding), f"{name}/rows.json")
    if finding.answer:
        mlflow.set_tag(name, finding.answer.text)
    with tempfile.TemporaryDirectory() as folder:
        for picture in _pictures(finding, folder):
            mlflow.log_artifact(picture, name)


def _pictures(finding: Displayed, folder: str) -> list[str]:
    """The path of the picture that ``torchcoll.plot`` draws, none where it draws none."""
    path = str(Path(folder, "picture.png"))
    try:
        torchcoll.plot(finding, path)
    except UsageError:
        return []
    return [path]
