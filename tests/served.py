"""Models that tests serve, by the name `served:…`; small, and the same in every process."""

import torch
from torch import nn

SHAPE = (1, 4, 4)


class Thirds(nn.Module):
    """Three classes by the brightness of an input; it raises an error about inputs that are very dark."""

    def __init__(self) -> None:
        super().__init__()
        self.steep = nn.Parameter(torch.tensor(12.0))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        bright = batch.flatten(1).mean(1)
        if (bright < -50).any():
            raise RuntimeError("it is too dark in here")
        centres = torch.tensor([0.2, 0.5, 0.8])
        return -self.steep * (bright[:, None] - centres).abs()


def thirds() -> nn.Module:
    return Thirds().eval()


def inputs(count: int = 12) -> torch.Tensor:
    """Inputs of every brightness; the last ones lie on a border."""
    rng = torch.Generator().manual_seed(0)
    levels = torch.linspace(0.1, 0.9, count)[:, None, None, None]
    return (levels + 0.05 * torch.randn(count, *SHAPE, generator=rng)).clamp(0, 1).float()


def other() -> nn.Module:
    """The same with other weights."""
    made = Thirds().eval()
    with torch.no_grad():
        made.steep.fill_(11.0)
    return made
