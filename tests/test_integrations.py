"""What Weights & Biases and MLflow have of a run and a comparison, both without their servers."""

import json
from pathlib import Path

import pytest

import torchcoll
from torchcoll.integrations import log_mlflow, log_wandb

H200 = Path(__file__).resolve().parent.parent / "results/h200-8gpu-kernels"
LARGEST = 377.0  # GB/s busbw: the largest value in the file, in whole numbers


@pytest.fixture(scope="module")
def run():
    return torchcoll.load(H200 / "generic.jsonl")


@pytest.fixture(scope="module")
def comparison(run):
    return torchcoll.compare(run, H200 / "nvidia.jsonl")


def test_wandb_has_rows_picture_and_answer(run, comparison, tmp_path):
    wandb = pytest.importorskip("wandb")
    settings = wandb.Settings(silent=True, console="off")
    with wandb.init(mode="offline", dir=tmp_path, project="p", settings=settings) as tracker:
        log_wandb(run, tracker)
        log_wandb(comparison, tracker, "kernels")
        answer = tracker.summary["kernels/answer"]
    assert answer == comparison.answer.text
    media = next(tmp_path.glob("wandb/offline-run-*/files/media"))
    (rows,) = media.glob("table/torchcoll/rows*.json")
    table = json.loads(rows.read_text())
    assert len(table["data"]) == 80
    column = table["columns"].index("busbw_gbps")
    assert max(row[column] for row in table["data"]) == pytest.approx(LARGEST, abs=0.5)
    assert len([*media.glob("images/torchcoll/picture*.png")]) == 1


# mlflow's own call of pandas
@pytest.mark.filterwarnings("ignore:For backward compatibility")
def test_mlflow_has_rows_picture_and_answer(run, comparison, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    with mlflow.start_run() as active:
        log_mlflow(run)
        log_mlflow(comparison, "kernels")
    table = mlflow.load_table("torchcoll/rows.json", run_ids=[active.info.run_id])
    assert len(table) == 80
    assert table["busbw_gbps"].max() == pytest.approx(LARGEST, abs=0.5)
    assert mlflow.get_run(active.info.run_id).data.tags["kernels"] == comparison.answer.text
    assert len([*tmp_path.glob("mlruns/*/*/artifacts/torchcoll/picture.png")]) == 1
