"""Published methods in a few lines each: not the project's recipes, but proof that a recipe can be any of them."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from ucan.errors import InvalidInput
from ucan.laws import Gaussian
from ucan.training.recipes import OfLogits, Recipe, cross_entropy
from ucan.training.step import Outcome


def each(logits, labels):
    """Cross-entropy of every copy: (n, batch)."""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.repeat(len(logits)), reduction="none").view(
        logits.shape[:2]
    )


def lengths(values, dims):
    return (
        values.flatten(dims).norm(dim=dims).clamp_min(1e-12).reshape(*values.shape[:dims], *[1] * (values.ndim - dims))
    )


def log_mean(logits, labels):
    """−log of the mean probability of the label over the copies: (batch,)."""
    mean = F.log_softmax(logits.float(), -1).logsumexp(0) - torch.tensor(float(len(logits))).log()
    return F.nll_loss(mean, labels, reduction="none")


@dataclass(frozen=True)
class Stability(Recipe):
    """Clean cross-entropy, and copies that answer as the clean input does."""

    weight: float = 2.0

    def step(self, step):
        clean, noisy = step.model(step.inputs), step.model(step.noise.copies(1)[0])
        far = -(clean.float().softmax(-1) * noisy.float().log_softmax(-1)).sum(-1).mean()
        loss = F.cross_entropy(clean.float(), step.labels) + self.weight * far
        return Outcome.of(loss, noisy, step.labels, stability=far)

    def cost(self, progress):
        return 2.0


@dataclass(frozen=True)
class SmoothAdv(Recipe):
    """PGD on the inputs through fixed draws, in evaluation mode; then cross-entropy there, with a warm-up."""

    draws: int = 2
    size: float = 0.5
    steps: int = 2
    warm: float = 1.0

    def step(self, step):
        eps = step.noise.draw(self.draws)
        size = self.size * step.progress.ramp(self.warm)
        x = step.inputs.detach()
        with step.model.aside():
            delta = torch.zeros_like(x)
            for _ in range(self.steps):
                delta.requires_grad_(True)
                loss = log_mean(step.model(step.noise.place(eps, x + delta)), step.labels).sum()
                (g,) = torch.autograd.grad(loss, delta)
                moved = delta.detach() + 2 * size / self.steps * g / lengths(g, 1)
                moved = moved * (size / lengths(moved, 1)).clamp_max(1)
                delta = (x + moved).clamp(0, 1) - x
        logits = step.model(step.noise.place(eps, x + delta))
        return Outcome.of(cross_entropy(logits, step.labels), logits, step.labels, moved=lengths(delta, 1).mean())

    def cost(self, progress):
        return self.draws * (1 + self.steps)


@dataclass(frozen=True)
class Macer(OfLogits):
    """The mean probability of the label, and the radius of what is right."""

    draws: int = 4
    weight: float = 1.0
    gamma: float = 8.0
    sharp: float = 16.0

    def prepare(self, task):
        if not isinstance(task.law, Gaussian):
            raise InvalidInput("macer is about the radius under Gaussian noise.")

    def loss(self, logits, labels):
        p = (self.sharp * logits.float()).softmax(-1).mean(0).clamp(1e-6, 1 - 1e-6)
        top, second = p.topk(2, -1).values.unbind(-1)
        gap = torch.special.ndtri(top) - torch.special.ndtri(second)
        counts = (p.argmax(-1) == labels) & (gap <= self.gamma)
        hinge = (self.gamma - gap) * counts
        return log_mean(logits, labels).mean() + self.weight * hinge.sum() / len(labels)


@dataclass(frozen=True)
class SmoothMix(Recipe):
    """Mixed with an unconstrained adversarial input, towards the uniform answer; only where the mean answer is right."""

    draws: int = 2
    steps: int = 2
    length: float = 0.5
    weight: float = 5.0

    def step(self, step):
        eps, x = step.noise.draw(self.draws), step.inputs.detach()
        with step.model.aside():
            far = x
            for _ in range(self.steps):
                far = far.requires_grad_(True)
                (g,) = torch.autograd.grad(log_mean(step.model(step.noise.place(eps, far)), step.labels).sum(), far)
                far = (far + self.length * g / lengths(g, 1)).detach().clamp(0, 1)
        logits = step.model(step.noise.place(eps))
        mean = logits.float().softmax(-1).mean(0)
        share = step.uniform()[0].reshape(-1, *[1] * (x.ndim - 1)) / 2
        mixed = step.model(step.noise.place(eps, torch.lerp(x, far, share)))
        row = share.reshape(-1, 1)
        wanted = (1 - row) * mean.detach() + row / mean.shape[-1]
        apart = (wanted * (wanted.log() - mixed.float().log_softmax(-1))).sum(-1).mean(0)
        mixing = step.mean(apart, (mean.argmax(-1) == step.labels).float())
        return Outcome.of(cross_entropy(logits, step.labels) + self.weight * mixing, logits, step.labels, mixing=mixing)

    def cost(self, progress):
        return self.draws * (2 + self.steps)


@dataclass(frozen=True)
class CatRs(Recipe):
    """The easiest copies of each input, as many as a coin of its accuracy says, and the hardest of an attack on the noise."""

    draws: int = 4
    steps: int = 2
    size: float = 1.0
    weight: float = 1.0

    def step(self, step):
        eps = step.noise.draw(self.draws)
        logits = step.model(step.noise.place(eps))
        losses, right = each(logits, step.labels), (logits.argmax(-1) == step.labels).float().mean(0)
        kept = (step.uniform(self.draws) < right).sum(0).clamp_min(1)
        order = losses.sort(0).values
        low = (order * (torch.arange(self.draws)[:, None] < kept)).sum(0).mean() / self.draws
        soft = logits.detach().float().softmax(-1).mean(0)
        with step.model.aside("batch"):
            moved = eps
            for _ in range(self.steps):
                moved = moved.detach().requires_grad_(True)
                (g,) = torch.autograd.grad(each(step.model(step.noise.place(moved)), step.labels).sum(), moved)
                away = moved.detach() + 2 * self.size / self.steps * g / lengths(g, 2) - eps
                moved = eps + away * (self.size / lengths(away, 2)).clamp_max(1)
        hard = step.model(step.noise.place(moved)).float().log_softmax(-1)
        high = step.mean((soft * (soft.log() - hard)).sum(-1).amax(0), (kept == self.draws).float())
        return Outcome.of(low + self.weight * high, logits, step.labels)

    def cost(self, progress):
        return self.draws * (2 + self.steps)


@dataclass(frozen=True)
class Acr(Recipe):
    """After a start: the hopeless are dropped, the others drawn by how sure they are, and their noise moves on its sphere."""

    draws: int = 2
    start: int = 1
    steps: int = 2
    length: float = 0.25
    least: float = 0.1
    _memory: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def prepare(self, task):
        self._memory["weights"] = torch.ones(task.inputs, device=task.device)
        self._memory["seen"] = torch.zeros(task.inputs, dtype=torch.int64, device=task.device)

    def before_epoch(self, survey):
        if survey.progress.epoch < self.start:
            return
        right = survey.each(lambda s: (s.model(s.noise.copies(8)).argmax(-1) == s.labels).float().mean(0))
        self._memory["weights"] = (right >= self.least) * torch.special.ndtri(right.clamp(0.75, 0.99))

    def sampling(self):
        return self._memory["weights"]

    def step(self, step):
        places = step.together(step.places)
        self._memory["seen"].index_add_(0, places, torch.ones_like(places))
        eps = step.noise.draw(self.draws)
        if step.progress.epoch >= self.start:
            eps = self.attacked(step, eps)
        logits = step.model(step.noise.place(eps))
        return Outcome.of(cross_entropy(logits, step.labels), logits, step.labels)

    def attacked(self, step, eps):
        own, moved = lengths(eps, 2), eps
        with step.model.aside():
            for _ in range(self.steps):
                moved = moved.detach().requires_grad_(True)
                (g,) = torch.autograd.grad(each(step.model(step.noise.place(moved)), step.labels).sum(), moved)
                moved = moved.detach() + self.length * g / lengths(g, 2)
                moved = moved * (own / lengths(moved, 2))
        return moved

    def cost(self, progress):
        return self.draws * (1 + self.steps * (progress.epoch >= self.start)) + 8 / 3 * (progress.epoch >= self.start)

    def state(self):
        return dict(self._memory)

    def load_state(self, state):
        self._memory.update({name: tensor.to(self._memory[name].device) for name, tensor in state.items()})


@dataclass(frozen=True)
class Drt(Recipe):
    """Several networks whose margins' gradients point apart: a gradient of gradients."""

    weight: float = 0.5

    def step(self, step):
        noisy = step.noise.copies(1)[0].detach().requires_grad_(True)
        answers = [network(noisy) for network in step.model.members]
        loss, slopes = torch.zeros(()), []
        for logits in answers:
            loss = loss + F.cross_entropy(logits.float(), step.labels)
            other = logits.scatter(1, step.labels[:, None], -torch.inf).amax(1)
            margin = logits.gather(1, step.labels[:, None])[:, 0] - other
            slopes.append(torch.autograd.grad(margin.sum(), noisy, create_graph=True)[0].flatten(1))
        right = (torch.stack(answers).mean(0).argmax(-1) == step.labels).float()
        apart = step.mean((slopes[0] + slopes[1]).norm(dim=1), right)
        return Outcome.of(loss + self.weight * apart, torch.stack(answers), step.labels)

    def cost(self, progress):
        return 2.0


@dataclass(frozen=True)
class Distilled(Recipe):
    """The answers of the classifier as it was when training began: a teacher in the recipe's state."""

    _teacher: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def step(self, step):
        if not self._teacher:
            self._teacher.update({k: v.detach().clone() for k, v in step.model.module.state_dict().items()})
        noisy = step.noise.copies(1)[0]
        with torch.no_grad(), step.model.aside():
            taught = torch.func.functional_call(step.model.module, self._teacher, (noisy,)).softmax(-1)
        logits = step.model(noisy)
        loss = F.cross_entropy(logits.float(), step.labels) - (taught * logits.float().log_softmax(-1)).sum(-1).mean()
        return Outcome.of(loss, logits, step.labels)

    def cost(self, progress):
        return 4 / 3

    def state(self):
        return dict(self._teacher)

    def load_state(self, state):
        self._teacher.update(state)


SKETCHES = {
    "stability": Stability,
    "smoothadv": SmoothAdv,
    "macer": Macer,
    "smoothmix": SmoothMix,
    "catrs": CatRs,
    "acr": Acr,
    "drt": Drt,
    "distilled": Distilled,
}
