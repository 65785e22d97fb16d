"""`ucan demo tables` and `ucan demo audio`: certificates in words of the data, on data that need no download."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucan.errors import MissingExtra

if TYPE_CHECKING:
    from torch import nn

# The signals: so many samples at so many a second, a low and a high tone in hertz.
SAMPLES, RATE, TONES = 256, 8000, (500.0, 1000.0)


def demo_tables(out: Path, n: int, quiet: bool) -> None:
    """Two of scikit-learn's tables, a pipeline each, noise in every column's own unit, and the answers in words."""
    try:
        from sklearn import datasets
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError as error:
        raise MissingExtra("The tables come with scikit-learn: pip install scikit-learn.") from error

    from ucan.cli.certify import in_words
    from ucan.cli.progress import Shown
    from ucan.data.tables import Table
    from ucan.runs.certify import CertifyJob, certify

    for name in ("breast_cancer", "wine"):
        loaded = getattr(datasets, f"load_{name}")()
        columns = [str(column) for column in loaded.feature_names]
        kinds = [str(loaded.target_names[k]) for k in loaded.target]
        rows = [dict(zip(columns, row, strict=True)) for row in loaded.data]
        train, test = (
            {c: [r[c] for r in part] for c in columns} | {"diagnosis": labels}
            for part, labels in ((rows[::2], kinds[::2]), (rows[1::2], kinds[1::2]))
        )
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(loaded.data[::2], kinds[::2])
        table = Table(test, target="diagnosis", train={c: train[c] for c in columns}, name=name)
        say(
            quiet,
            f"\n{name.replace('_', ' ')}: {len(table)} rows, {len(columns)} columns; noise is a quarter of each spread",
        )
        job = CertifyJob(model=model, data=table, n=n, skip=max(1, len(table) // 50))
        done = certify(job, out / name, Shown("certifying", quiet))
        print(in_words(done))


def demo_audio(out: Path, n: int, quiet: bool) -> None:
    """Tones made on the spot, told apart under the same noise everywhere, and under noise shaped over frequencies."""
    import torch

    from ucan import Fixed, Gaussian, SmoothedClassifier
    from ucan.certificate import Certificate, save_json
    from ucan.rounding import floor_grouped, floor_percent
    from ucan.scales import DCT

    signals, labels = _tones(20, torch.Generator().manual_seed(0))
    model = _bands(torch)
    hertz = torch.arange(SAMPLES) * RATE / (2 * SAMPLES)
    shaped = torch.where(hertz < 1.5 * TONES[1], 1.0, 8.0).reshape(1, 1, SAMPLES)
    kinds = {"the same noise at every frequency": None, "eight times as much where no tone is": shaped}
    for name, noise in kinds.items():
        g = SmoothedClassifier(model, Gaussian(scale=0.5), None if noise is None else Fixed(DCT(noise)), num_classes=2)
        outcomes = g.certify(signals, n0=50, n=n)
        pairs = zip(outcomes, labels.tolist(), strict=True)
        right = [c for c, label in pairs if isinstance(c, Certificate) and c.prediction == label]
        say(
            quiet,
            f"\n{name}: {floor_percent(len(right) / len(outcomes))} % of {len(outcomes)} tones certified correctly",
        )
        if not right:
            continue
        first = right[0]
        save_json(first, out / f"audio-{'isotropic' if noise is None else 'shaped'}.json")
        loud = _loudness(first.region, [TONES[0] * 1.2, 3000.0])
        print(
            f"The answer stays “{('low', 'high')[first.prediction]} tone” while a hum at {TONES[0] * 1.2:g} Hz of an amplitude "
            f"below {floor_grouped(loud[0])} is added, or a whistle at 3,000 Hz below {floor_grouped(loud[1])}, in whatever "
            "phase; the tone itself has the amplitude 1."
        )


def _tones(count: int, rng: Any) -> tuple[Any, Any]:
    """Tones of two pitches with random phases (N, 1, 1, samples), and which is which."""
    import torch

    labels = torch.arange(count) % 2
    phase = 2 * math.pi * torch.rand(count, 1, generator=rng)
    pitch = torch.tensor(TONES)[labels][:, None] * (1 + 0.02 * torch.randn(count, 1, generator=rng))
    times = torch.arange(SAMPLES) / RATE
    return torch.sin(2 * math.pi * pitch * times + phase).reshape(count, 1, 1, SAMPLES), labels


def _bands(torch: Any) -> nn.Module:
    """A classifier by the energy around each of the two pitches."""
    from torch import nn

    from ucan.scales.dct import cosine_matrix

    class Bands(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            hertz = torch.arange(SAMPLES) * RATE / (2 * SAMPLES)
            near = torch.stack([(hertz - tone).abs() < 120 for tone in TONES]).float()
            self.register_buffer("cosines", cosine_matrix(SAMPLES).float())
            self.register_buffer("near", near)

        def forward(self, x: Any) -> Any:
            """Energies (n, 2)."""
            return (x.flatten(1) @ self.cosines.T).square() @ self.near.T

    return Bands().eval()


def _loudness(region: Any, pitches: list[float]) -> list[float]:
    """The amplitude below which a sound of each pitch may be added, whatever its phase: R/‖Σ⁻¹(sine, cosine)‖₂."""
    import torch

    times, found = torch.arange(SAMPLES, dtype=torch.float64) / RATE, []
    for pitch in pitches:
        angle = 2 * math.pi * pitch * times
        waves = torch.stack([angle.sin(), angle.cos()]).reshape(2, 1, 1, SAMPLES)
        largest = float(torch.linalg.matrix_norm(region.scale.solve(waves.reshape(2, -1)), ord=2))
        found.append(region.radius / largest * (1 - 1e-9))
    return found


def say(quiet: bool, text: str) -> None:
    """Print a line unless the demo is quiet, before the progress on standard error."""
    if not quiet:
        print(text, flush=True)
