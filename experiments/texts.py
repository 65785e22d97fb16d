"""Noise shaped by the spread of the words (`Embedded.shaped`) against isotropic noise, on a small BERT trained here.

    python experiments/texts.py          # the table of docs/texts.md; a few minutes on one core

Three trainings (no noise, isotropic noise, the shaped noise itself) of the model of docs/texts.md, and 50 new texts each.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import ucan
from ucan.models import Embedded
from ucan.rounding import floor_digits

LENGTH, TRAINED_WITH, TEXTS, VOTES = 12, 0.1, 50, 1000
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def texts_of(n: int, rng: torch.Generator) -> Batch:
    """Token 1, three kind (2 to 11) or unkind (12 to 21) words, then plain ones; 0 is padding."""
    labels = torch.randint(2, (n,), generator=rng)
    tokens = torch.randint(22, 60, (n, LENGTH), generator=rng)
    tokens[:, 0] = 1
    tokens[:, 1:4] = torch.randint(2, 12, (n, 3), generator=rng) + 10 * labels[:, None]
    mask = (torch.arange(LENGTH) < torch.randint(6, LENGTH + 1, (n, 1), generator=rng)).long()
    return tokens * mask, mask, labels


def trained(kind: str) -> BertForSequenceClassification:
    """The model of docs/texts.md, with one kind of noise on its embeddings while it learns."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    model = BertForSequenceClassification(config)

    def noisy(_: nn.Module, __: object, out: torch.Tensor) -> torch.Tensor:
        drawn = TRAINED_WITH * torch.randn(out.shape, generator=rng)
        if kind == "shaped":  # as it is now: words move while the model learns
            drawn = drawn @ Embedded(model).shaped(1).scale.dense(config.hidden_size).float()
        return out if kind == "none" else out + drawn

    put = model.get_input_embeddings().register_forward_hook(noisy)
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(150):
        tokens, mask, labels = texts_of(64, rng)
        loss = model(tokens, attention_mask=mask, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    put.remove()
    return model.eval()


def line(model: BertForSequenceClassification, name: str, scale: float) -> str:
    """How the certificates of one noise come out, and the (lower) median radius and ALM of those that are right."""
    texts = Embedded(model)
    noise = texts.shaped(LENGTH) if name == "shaped" else ucan.Isotropic()
    right, answers, wrong = [], set(), 0
    tokens, mask, labels = texts_of(TEXTS, torch.Generator().manual_seed(1))
    for i, label in enumerate(labels.tolist()):
        at = texts.at(tokens[i : i + 1], attention_mask=mask[i : i + 1])
        g = ucan.SmoothedClassifier(at, ucan.Gaussian(scale), noise, num_classes=2)
        (c,) = g.certify(texts.embed(tokens[i : i + 1]), n=VOTES)
        answers.add(c.prediction)
        if isinstance(c, ucan.Certificate) and c.prediction == label:
            right.append((c.radius, c.alm))
        wrong += isinstance(c, ucan.Certificate) and c.prediction != label
    middle = [floor_digits(sorted(sizes)[(len(right) - 1) // 2], 3) for sizes in zip(*right, strict=True)] or ["–", "–"]
    shares = f"{len(right)} / {wrong} / {TEXTS - len(right) - wrong}"
    return f"{scale} | {name} | {shares} | {middle[0]} | {middle[1]} | answers: {answers}"


def main() -> None:
    """The table, row by row."""
    for kind in ("none", "isotropic", "shaped"):
        model = trained(kind)
        tokens, mask, labels = texts_of(TEXTS, torch.Generator().manual_seed(1))
        clean = (model(tokens, attention_mask=mask).logits.argmax(1) == labels).sum()
        print(f"trained with {kind}: {clean} of {TEXTS} right without noise")
        for scale in (0.1, 0.5):
            for name in ("isotropic", "shaped"):
                print(f"| {kind} | {line(model, name, scale)}", flush=True)


if __name__ == "__main__":
    main()
