"""Texts and other tokens: a classifier smoothed in the space of its embeddings."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import torch
from torch import nn

from ucan.errors import InvalidInput, ModelError
from ucan.estimators import known_classes
from ucan.generators import Fixed
from ucan.held import Held, check_evaluating
from ucan.scales import BlockDiagonal
from ucan.votes import as_answer

WORDS = "the words"  # what is held: a certificate covers changes of embeddings, and no change of these


class Embedded:
    """A classifier of tokens as a classifier of their embeddings.

    A word cannot be moved a little, but its embedding can. ``at`` gives the classifier of embeddings at one text; its
    certificates cover changes of the embeddings of these words, not other words, and say so.

    Args:
        model: a module from tokens (batch, length) to logits, such as a Hugging Face classifier.
        embedding: its layer from tokens to embeddings; if None, what ``model.get_input_embeddings()`` gives.
    """

    def __init__(self, model: nn.Module, embedding: nn.Module | None = None) -> None:
        if not isinstance(model, nn.Module):
            inner = ": give its .model" if isinstance(getattr(model, "model", None), nn.Module) else ""
            raise ModelError(f"the model must be a PyTorch module, got {type(model).__name__}{inner}.")
        find = getattr(model, "get_input_embeddings", None)
        found = embedding if embedding is not None else None if find is None else find()
        if not isinstance(found, nn.Module) or all(part is not found for part in model.modules()):
            raise ModelError("the model's embedding layer is not known: give it as embedding=, a part of the model.")
        self.model, self.embedding = model, found

    @torch.no_grad()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The embeddings (batch, length, width) of tokens (batch, length): the inputs that are certified."""
        found: torch.Tensor = self.embedding(_checked(tokens))
        return found

    def at(self, tokens: torch.Tensor, **inputs: torch.Tensor) -> AtTokens:
        """The classifier of embeddings at one text (1, length); ``inputs`` are what else it takes, as attention_mask."""
        check_evaluating(self.model)
        if len(_checked(tokens)) != 1:
            raise InvalidInput(f"one text (1, length) is needed, got tokens of shape {tuple(tokens.shape)}.")
        self._check_inputs(tokens, inputs)
        return AtTokens(self, tokens, inputs)

    def _check_inputs(self, tokens: torch.Tensor, inputs: dict[str, torch.Tensor]) -> None:
        """Refuse names that the model does not take, which Hugging Face's ignore silently, and a mask of another shape."""
        taken = inspect.signature(self.model.forward).parameters
        named = [name for name, one in taken.items() if one.kind is not one.VAR_KEYWORD]
        for name, given in inputs.items():
            if name not in named and len(named) > 1:
                raise InvalidInput(f"{type(self.model).__name__} takes no {name}; it takes {', '.join(named)}.")
            if name == "attention_mask" and tuple(given.shape) != tuple(tokens.shape):
                raise InvalidInput(
                    f"the attention_mask has the shape {tuple(given.shape)}, and the tokens {tuple(tokens.shape)}: give one "
                    "number for every token."
                )

    @torch.no_grad()
    def shaped(self, length: int) -> Fixed:
        """Noise with one block of Σ per token: the spread of the embedding table, scaled to a mean variance of 1.

        The same for every text of this length. Not a good choice for radii: words differ most in the directions that decide the
        class, so this noise hides them, and is small where nothing is gained. Measured (docs/texts.md), its radii were at least
        9 times smaller than those of isotropic noise, often for a wrong class. Take ``ucan.Isotropic()``, the default.
        """
        table = getattr(self.embedding, "weight", None)
        if not isinstance(table, torch.Tensor) or table.ndim != 2:
            raise ModelError("this embedding layer has no table of weights to learn a spread from: use ucan.Fixed.")
        values, vectors = torch.linalg.eigh(torch.cov(table.detach().double().cpu().T))
        values = values.clamp(min=1e-4 * float(values.max()))
        root = (vectors * (values / values.mean()).sqrt()) @ vectors.T
        return Fixed(BlockDiagonal(root.float().expand(length, -1, -1).contiguous()))


class AtTokens(nn.Module):
    """A classifier of the embeddings (n, length, width) of one text; its words, and what else it takes, are held."""

    model: nn.Module
    tokens: torch.Tensor

    def __init__(self, source: Embedded, tokens: torch.Tensor, inputs: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.model = source.model
        self._embedding = (source.embedding,)  # in a tuple: it is a part of the model
        self.register_buffer("tokens", tokens.detach().clone())
        self._names = tuple(sorted(inputs))
        for name in self._names:
            self.register_buffer(f"given_{name}", inputs[name].detach().clone())
        shown = hashlib.sha256(tokens.detach().cpu().long().numpy().tobytes()).hexdigest()[:16]
        self.held = Held((WORDS,), (shown,))
        self.num_classes = known_classes(source.model)  # as of a Hugging Face model; None if it states none
        self.training = False

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """The model's logits for these embeddings in place of its own."""
        n = len(embeddings)
        given = {name: getattr(self, f"given_{name}").expand(n, -1) for name in self._names}
        put = self._embedding[0].register_forward_hook(lambda *_: embeddings)
        try:
            return as_answer(self.model(self.tokens.expand(n, -1), **given))
        finally:
            put.remove()


def _checked(tokens: Any) -> torch.Tensor:
    """Tokens as whole numbers (batch, length)."""
    whole = isinstance(tokens, torch.Tensor) and not (tokens.is_floating_point() or tokens.is_complex())
    if not whole or tokens.ndim != 2:
        told = (
            f"{tokens.dtype} of shape {tuple(tokens.shape)}"
            if isinstance(tokens, torch.Tensor)
            else type(tokens).__name__
        )
        hint = ': give its ["input_ids"]' if hasattr(tokens, "input_ids") else ""
        raise InvalidInput(f"tokens must be whole numbers of shape (batch, length), got {told}{hint}.")
    found: torch.Tensor = tokens
    return found
