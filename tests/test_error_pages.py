"""A page about an error message quotes what UCAN says: each quoted message is provoked."""

import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import ucan
from ucan.runs.certify import CertifyJob, certify

QUESTIONS = Path(__file__).parents[1] / "docs" / "questions"
X = torch.rand(2, 1, 2, 2, generator=torch.Generator().manual_seed(0))


def net(classes: int = 2) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, classes)).eval()


def g(model: Any = None, law: Any = None, generator: Any = None) -> ucan.SmoothedClassifier:
    return ucan.SmoothedClassifier(model or net(), law or ucan.Gaussian(0.25), generator, num_classes=2)


class Looking(ucan.Generator):
    scope = "pipeline"

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return torch.zeros_like(x), ucan.scales.Diagonal(1 + x[0].abs())


def another_registry(folder: Path) -> None:
    with ucan.Registry(folder / "r") as registry:
        registry.certify(g(), X, n=100)
        registry.certify(g(), X + 1, n=100)


def another_run(folder: Path) -> None:
    data = folder / "data.npz"
    np.savez(data, x=X.numpy(), y=np.zeros(2, dtype=int))
    for n in (100, 200):
        certify(CertifyJob(model=net(), data=str(data), n=n), folder / "run")


def a_pickle(folder: Path) -> None:
    (folder / "m.pkl").write_bytes(pickle.dumps(LogisticRegression().fit(np.eye(4), [0, 1, 0, 1])))
    np.savez(folder / "data.npz", x=X.flatten(1).numpy(), y=np.zeros(2, dtype=int))
    certify(CertifyJob(model=str(folder / "m.pkl"), data=str(folder / "data.npz"), n=100), folder / "run")


def pixels(folder: Path) -> None:
    np.savez(folder / "data.npz", x=255 * X.numpy(), y=np.zeros(2, dtype=int))
    certify(CertifyJob(model=net(), data=str(folder / "data.npz"), n=100), folder / "run")


def without_foolbox(folder: Path) -> None:
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "foolbox"}
    sys.modules.pop("ucan.neighbours.foolbox", None)
    sys.modules["foolbox"] = None  # type: ignore[assignment]
    try:
        __import__("ucan.neighbours.foolbox")
    finally:
        del sys.modules["foolbox"]
        sys.modules.update(kept)


# The page, and what makes the messages that it quotes.
PROVOKED: dict[str, list[Callable[[Path], Any]]] = {
    "norm": [lambda _: g(law=ucan.Laplace(0.25)).certify(X, n=100)],
    "model-refused": [lambda _: g(net().train()).certify(X, n=100), lambda _: g(net(3)).certify(X, n=100)],
    "resume": [another_run],
    "inputs": [
        lambda _: g().certify(X.numpy(), n=100),
        lambda _: g().certify((255 * X).to(torch.uint8), n=100),
        lambda _: g().certify(torch.zeros(784), n=100),
        lambda _: g().certify(X * float("nan"), n=100),
        lambda _: g().certify(torch.zeros(1, 1, 28, 28), n=100),
        pixels,
    ],
    "singular": [lambda _: g(generator=ucan.Fixed(torch.tensor([[[1.0, 1], [1, 0]]])))],
    "pipeline-refused": [lambda _: g(generator=Looking()).certify(X, n=100)],
    "rounding": [lambda _: g(law=ucan.Gaussian(1e-9)).certify(X, n=100)],
    "registry": [another_registry],
    "trust": [a_pickle],
    "extra": [without_foolbox],
}


def quoted(page: Path) -> list[str]:
    """The messages between typographic quotes, in the parts that dots leave."""
    text = page.read_text(encoding="utf-8").replace("\\*", "*").replace("\n", " ")
    return [part.strip() for message in re.findall("“([^”]+)”", text) for part in message.split("…") if part.strip()]


def said(provoke: Callable[[Path], Any], folder: Path) -> str:
    with pytest.raises(ucan.UcanError) as raised:
        provoke(folder)
    return str(raised.value)


@pytest.mark.parametrize("name", PROVOKED)
def test_the_page_quotes_what_is_said(name: str, tmp_path: Path) -> None:
    messages = []
    for number, provoke in enumerate(PROVOKED[name]):
        folder = tmp_path / str(number)
        folder.mkdir()
        messages.append(said(provoke, folder))
    parts = quoted(QUESTIONS / f"{name}.md")
    assert parts and [part for part in parts if not any(part in message for message in messages)] == []


def test_every_page_with_a_message_in_its_title_is_tested() -> None:
    titled = {page.stem for page in QUESTIONS.glob("*.md") if "“" in page.read_text(encoding="utf-8").splitlines()[0]}
    assert titled == set(PROVOKED)
