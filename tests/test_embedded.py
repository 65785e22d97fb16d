"""Smoothing in the space of embeddings, on a small classifier of texts that is trained here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ucan
from ucan.models import Embedded
from ucan.verify import verify

GOOD, BAD, PLAIN = range(0, 10), range(10, 20), range(20, 40)
LENGTH = 6


class Texts(nn.Module):
    """A mean of embeddings, then two layers; padding (token 40) is left out by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(41, 8)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def get_input_embeddings(self) -> nn.Module:
        """As Hugging Face's models have it."""
        return self.words

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Logits."""
        embedded = self.words(tokens)
        mask = torch.ones(tokens.shape) if attention_mask is None else attention_mask
        return self.head((embedded * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def drawn(n: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(2, (n,), generator=rng)
    plain = torch.randint(20, 40, (n, LENGTH), generator=rng)
    told = torch.randint(10, (n, 3), generator=rng) + 10 * (1 - labels[:, None])
    plain[:, :3] = told
    return plain, labels


@pytest.fixture(scope="module")
def trained() -> Texts:
    torch.manual_seed(0)
    model, rng = Texts(), torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(150):
        tokens, labels = drawn(64, rng)
        put = model.words.register_forward_hook(lambda _, __, out: out + 0.3 * torch.randn(out.shape, generator=rng))
        loss = nn.functional.cross_entropy(model(tokens), labels)
        put.remove()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def test_a_text_is_certified_in_embedding_space_and_says_so(trained: Texts) -> None:
    texts, (tokens, labels) = Embedded(trained), drawn(12, torch.Generator().manual_seed(1))
    right = 0
    for one, label in zip(tokens.split(1), labels, strict=True):
        for noise in (ucan.Isotropic(), texts.shaped(LENGTH)):
            g = ucan.SmoothedClassifier(texts.at(one), ucan.Gaussian(0.3), noise, num_classes=2)
            (c,) = g.certify(texts.embed(one), n=400)
            assert "with the words held: no change of them is covered" in str(c)
            assert c.evidence.held is not None and c.evidence.held.columns == ("the words",)
            right += c.prediction == int(label) and c.radius > 0
    assert right >= 20


def test_the_classifier_of_embeddings_answers_as_the_model_does(trained: Texts) -> None:
    texts, tokens = Embedded(trained), drawn(1, torch.Generator().manual_seed(2))[0]
    assert torch.equal(texts.at(tokens)(texts.embed(tokens)), trained(tokens))
    tokens[0, -2:] = 40
    mask = (tokens != 40).float()
    assert torch.equal(texts.at(tokens, attention_mask=mask)(texts.embed(tokens)), trained(tokens, mask))
    moved = texts.embed(tokens).repeat(3, 1, 1) + torch.tensor([0.0, 1.0, 2.0])[:, None, None]
    each = torch.cat([texts.at(tokens)(one) for one in moved.split(1)])
    assert torch.allclose(texts.at(tokens)(moved), each, atol=1e-6)
    assert not trained.words._forward_hooks, "a hook was left behind"


def test_another_text_is_another_classifier(trained: Texts) -> None:
    texts, tokens = Embedded(trained), drawn(2, torch.Generator().manual_seed(3))[0]
    one, other = (ucan.SmoothedClassifier(texts.at(t), ucan.Gaussian(0.3), num_classes=2) for t in tokens.split(1))
    (c,) = one.certify(texts.embed(tokens[:1]), n=200)
    assert isinstance(c, ucan.Certificate)
    assert verify(c, one, texts.embed(tokens[:1])).confirms == "pipeline"
    assert not verify(c, other, texts.embed(tokens[:1])).stands


def test_blocks_have_the_tables_spread(trained: Texts) -> None:
    scale = Embedded(trained).shaped(2).scale.dense(16)
    spread = torch.cov(trained.words.weight.detach().double().T)
    block = scale[:8, :8].double()
    assert torch.allclose(block @ block.T, spread * 8 / spread.trace(), atol=2e-3)
    assert torch.equal(scale[:8, 8:], torch.zeros(8, 8)) and torch.equal(scale[:8, :8], scale[8:, 8:])


def test_refusals(trained: Texts) -> None:
    with pytest.raises(ucan.ModelError, match="embedding="):
        Embedded(nn.Linear(2, 2))
    with pytest.raises(ucan.InvalidInput, match="whole numbers"):
        Embedded(trained).embed(torch.rand(1, 3))
    with pytest.raises(ucan.InvalidInput, match="one text"):
        Embedded(trained).at(torch.zeros(2, 3, dtype=torch.long))


def test_what_a_model_does_not_take_is_refused_where_others_ignore_it(trained: Texts) -> None:
    """Hugging Face's models take any keyword: a misspelt mask would be no mask, and the answer another one."""

    class Lenient(Texts):
        def forward(self, tokens, attention_mask=None, **rest):  # type: ignore[no-untyped-def, override]
            return super().forward(tokens, attention_mask)

    texts, (tokens, _) = Embedded(Lenient().eval()), drawn(1, torch.Generator().manual_seed(1))
    with pytest.raises(ucan.InvalidInput, match="Lenient takes no attentoin_mask; it takes tokens, attention_mask"):
        texts.at(tokens, attentoin_mask=torch.ones(1, LENGTH))
    with pytest.raises(ucan.InvalidInput, match=r"attention_mask has the shape \(1, 3\), and the tokens \(1, 6\)"):
        texts.at(tokens, attention_mask=torch.ones(1, 3))
    texts.at(tokens, attention_mask=torch.ones(1, LENGTH))

    class Encoded(dict):  # type: ignore[type-arg]
        input_ids = tokens

    with pytest.raises(ucan.InvalidInput, match=r'got Encoded: give its \["input_ids"\]'):
        texts.embed(Encoded())  # type: ignore[arg-type]

    class Pipeline:
        model = trained

    with pytest.raises(ucan.ModelError, match=r"got Pipeline: give its \.model"):
        Embedded(Pipeline())  # type: ignore[arg-type]
