"""Hugging Face: a pipeline made from a configuration, certified in pixels; its data sets as data. Nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ucan
from ucan.data.objects import as_dataset
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.read import Run

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, about backends that are not installed


@pytest.fixture(scope="module")
def pipe() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    labels = {0: "circle", 1: "square", 2: "star"}
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
        id2label=labels,
        label2id={name: number for number, name in labels.items()},
    )
    model = transformers.ViTForImageClassification(config)
    with (
        torch.no_grad()
    ):  # answers that differ between pictures, which the random head of a small network does not give
        model.classifier.weight.mul_(200)
    kind = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
    processor = kind(size={"height": 16, "width": 16}, image_mean=[0.2, 0.4, 0.6], image_std=[0.5, 0.25, 0.2])
    return transformers.pipeline("image-classification", model=model, image_processor=processor, device="cpu")


def pictures(count: int = 6) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)) for _ in range(count)]


def test_the_classifier_is_the_pipeline(pipe: Any) -> None:
    """Without noise the module gives the pipeline's own scores: its normalisation is behind the noise, not left out."""
    from ucan.neighbours.transformers import class_names, inputs_of, smoothed_pipeline

    g = smoothed_pipeline(pipe, ucan.Gaussian(0.1))
    pixels = inputs_of(pipe, pictures())
    assert pixels.shape == (6, 3, 16, 16) and pixels.min() >= 0 and pixels.max() <= 1
    with torch.no_grad():
        found = g.f.model(pixels).softmax(-1)
    for row, told in zip(found, pipe(pictures()), strict=True):
        scores = {entry["label"]: entry["score"] for entry in told}
        for name, share in zip(class_names(pipe), row.tolist(), strict=True):
            assert scores[name] == pytest.approx(share, abs=1e-5)
    assert g.f.num_classes == 3


def test_a_pipeline_is_certified(pipe: Any) -> None:
    from ucan.neighbours.transformers import inputs_of, smoothed_pipeline

    g = smoothed_pipeline(pipe, ucan.Gaussian(0.05), step=1 / 255)
    outcomes = g.certify(inputs_of(pipe, pictures()), n=200)
    certified = [c for c in outcomes if isinstance(c, ucan.Certificate)]
    assert certified and all(c.scope == "pipeline" and c.evidence.arithmetic != "real" for c in certified)
    inner = ucan.Differentiable(g, draws=64, seed=1)
    for x, c in zip(
        inputs_of(pipe, pictures()), outcomes, strict=True
    ):  # an independent estimate of the same probabilities
        if isinstance(c, ucan.Certificate) and c.p_lower > 0.9:
            assert int(inner(x[None]).argmax()) == c.prediction


def test_pipelines_that_noise_does_not_fit_are_refused(pipe: Any) -> None:
    from ucan.neighbours.transformers import smoothed_pipeline

    class Text:
        task, model = "text-classification", torch.nn.Linear(1, 1)

    with pytest.raises(ucan.ModelError, match=r"to their embeddings: ucan\.models\.Embedded"):
        smoothed_pipeline(Text(), ucan.Gaussian(0.1))
    whole, pipe.image_processor.do_rescale = pipe.image_processor.do_rescale, False
    try:
        with pytest.raises(ucan.ModelError, match="does not scale bytes"):
            smoothed_pipeline(pipe, ucan.Gaussian(0.1))
    finally:
        pipe.image_processor.do_rescale = whole


def test_a_model_and_a_data_set_as_they_are(pipe: Any, tmp_path: Any) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["circle", "square", "star"])}
    )
    rows = {"image": [Image.fromarray(picture) for picture in x], "label": [0, 1, 2, 0, 1]}
    data = datasets.Dataset.from_dict(rows, features=features)
    found = as_dataset(data)
    assert torch.equal(found[0][0], torch.from_numpy(x[0]).permute(2, 0, 1).float() / 255)
    assert found.labels.tolist() == [0, 1, 2, 0, 1] and tuple(found.classes) == ("circle", "square", "star")
    certify(CertifyJob(model=pipe.model.eval(), data=data, law="gaussian", scale=0.1, n=50), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.inputs == 5 and run.config.model.class_names == ("circle", "square", "star")
