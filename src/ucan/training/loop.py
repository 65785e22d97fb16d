"""The training loop: epochs with checkpoints, from which an interrupted run resumes with the same result."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan.data import Labelled, as_dataset, held_out
from ucan.errors import InvalidInput, MissingExtra, TrainingError, first_line
from ucan.fingerprint import weights_hash
from ucan.generators import Generator
from ucan.guards import check_theorem
from ucan.places import started_in
from ucan.storage import Journal
from ucan.training.average import Average
from ucan.training.batches import Batch, Batches, epoch_seed, flip_and_crop
from ucan.training.board import Board
from ucan.training.checkpoint import (
    CHECKPOINT,
    METRICS,
    NAMES,
    START,
    begin,
    clear_failed,
    keep_settings,
    read_checkpoint,
    save_run,
    weights_file,
    write_checkpoint,
    writing,
)
from ucan.training.classifier import count_outputs, fastest_layout, load_start
from ucan.training.joint import Exact, Joint
from ucan.training.layers import layers_state, own_draws, restore_layers
from ucan.training.optimisers import build_optimisers, load_optimiser, schedule
from ucan.training.recipes import Task
from ucan.training.settings import TrainSettings
from ucan.training.share import LEAVING, launched, share_statistics
from ucan.training.step import Progress, Step, Twins
from ucan.training.survey import Survey
from ucan.training.watch import Checked, Watch
from ucan.version import __version__

# Steps between two checks of the loss, since reading it makes the device wait.
LOOK_EVERY = 25
# A checkpoint that takes longer to write (seconds) is not written after every epoch, but for at most this share of the time.
SLOW_WRITE, WRITING = 0.2, 0.1

OnProgress = Callable[[int, int, int, dict[str, float]], None]  # epoch, step, steps per epoch, metrics


class Trainer:
    """Trains a classifier and a generator together, on any devices that Fabric supports.

    Under torchrun or Slurm each process takes its share of every batch, and together they take the steps that one process
    would: the same batches, noise, batch statistics and mean loss, so the same curve up to rounding. Only the first process
    writes, and a run may be resumed with another number of processes.

    The folder stores the settings and a hash of the data: resuming with others is refused.

    All randomness depends on (seed, epoch) or is stored in the checkpoint, so an interrupted and resumed run ends with the
    same weights, bit for bit on a CPU.

    Args:
        settings: the settings of the training run.
        dataset: the result of ``ucan.data.load``, or any torch Dataset of (pixels in [0, 1], label) that fits in memory.
        classifier: the module to train; it maps a batch to logits.
        folder: the run's folder.
        accelerator: the device, as Lightning Fabric names it: "auto", "cpu" or "cuda".
        on_progress: called after some steps with epoch, step, steps per epoch and mean metrics.
        finetune: a file with weights to start from, or the folder of a trained run; None for the module's own weights.
    """

    def __init__(
        self,
        settings: TrainSettings,
        dataset: Any,
        classifier: nn.Module,
        folder: str | Path,
        accelerator: str = "auto",
        on_progress: OnProgress | None = None,
        finetune: str | Path | None = None,
    ) -> None:
        self.settings = settings
        self.folder = Path(folder)
        self.on_progress = on_progress
        begun_with = _begin_with(settings, classifier, finetune)
        self.fabric = _fabric(accelerator, settings.precision)
        self.fabric.launch()
        device, self.rank, world = self.fabric.device, self.fabric.global_rank, self.fabric.world_size
        if world > 1:
            LEAVING.expect(self)
        dataset = _as_training_set(dataset)
        classes, shape = count_outputs(settings, classifier, dataset), dataset.event_shape
        if settings.augment and len(shape) != 3:
            raise InvalidInput(
                f"augment moves and flips pictures, and an input here has shape {shape}: set augment=false."
            )
        self.config = self._config(dataset, classes, finetune, begun_with)
        apart: Labelled | None = None
        if settings.held_out:
            dataset, apart = held_out(dataset, settings.held_out, settings.seed)
        self.batches = Batches(dataset, settings.batch, settings.seed, device, self.rank, world)
        self.share = self.batches.share
        with own_draws():
            torch.manual_seed(epoch_seed(settings.seed, 0, "initial weights"))
            generator, limits = _noise(settings, dataset, device)
            self.law = settings.build_law(math.prod(shape))
            check_theorem(generator)
            generator.check_claim(self.law)  # before any training: nothing could be certified afterwards
            self.recipe = settings.build_recipe()
            self.joint = self._joint(classifier, generator, limits, fastest_layout(classifier, shape))
            self.wrapped, *self.optimisers = self.fabric.setup(self.joint, *build_optimisers(settings, self.joint))
            self.ema = {k: v.detach().clone() for k, v in self.joint.state_dict().items()} if settings.ema else None
            self.average = None if self.ema is None else Average(self.ema, self.joint)
            self.recipe.prepare(Task(len(dataset), shape, classes, self.law, generator, device))
        self.rng = torch.Generator(device)
        self.epoch = self.step = 0
        self.totals: dict[str, torch.Tensor] = {}
        self.board = Board(self.folder / "tensorboard")
        self.watch = None if apart is None else Watch(apart, classes, self.law, generator, settings.certify_every)
        self._stop = False
        self._written, self._writing = -math.inf, 0.0  # when the last checkpoint was written, and how long it took

    def _config(
        self, dataset: Labelled, classes: int, finetune: str | Path | None, begun_with: str | None
    ) -> dict[str, Any]:
        """What the folder stores of this run; only the first process reads the data for their hash."""
        return {
            "kind": "train",
            "ucan": __version__,
            "shape": list(dataset.event_shape),
            "num_classes": classes,
            NAMES: None if dataset.classes is None else list(dataset.classes),
            "data_hash": dataset.fingerprint() if self.rank == 0 else None,
            "finetune": None if finetune is None else str(finetune),
            START: begun_with,
            "started_in": started_in(self.folder),
            "training": self.settings.to_dict(),
        }

    def _joint(
        self, classifier: nn.Module, generator: Generator, limits: torch.Tensor | None, layout: torch.memory_format
    ) -> Joint:
        """Classifier and noise as one module on this process's device; the classifier is compiled if the settings say so."""
        settings, device, world = self.settings, self.fabric.device, self.fabric.world_size
        if world > 1:
            classifier = share_statistics(classifier, device)
        term, weight = settings.variance_term, settings.variance_weight
        joint = Joint(classifier, generator, self.law, self.recipe, term, weight, limits, self.share, layout).to(device)
        if settings.compile:
            recorded = device.type == "cuda" and world == 1
            joint.use_for_answers(Twins.compiled(classifier, lambda f: _compiled(f, recorded), apart=world == 1))
        return joint

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, to the end; the weights are then in the folder."""
        with ExitStack() as held:
            if self.rank == 0:
                held.callback(begin(self.folder, self.config).release)
            held.enter_context(own_draws())
            self._resume()
            if self.rank == 0:  # not earlier: these settings must not be stored next to another run's checkpoint
                keep_settings(self.folder, self.config)
            try:
                with self._stoppable(), closing(self.board):
                    self._run_epochs()
            except BaseException as error:
                if self.rank == 0:
                    clear_failed(self.folder, error)
                raise
            if self.rank == 0:
                save_run(self.folder, self.final_state())
            self.fabric.barrier()

    def _run_epochs(self) -> None:
        while self.epoch < self.settings.epochs:
            self._run_epoch()
            self.epoch, self.step = self.epoch + 1, 0
            if self._checkpoint_due():
                self._checkpoint()
            if self.share.world > 1 and self.epoch < self.settings.epochs and self._all_stop():
                raise KeyboardInterrupt

    @property
    def scope(self) -> str:
        """The scope of the certificates that this classifier will have."""
        return self.joint.generator.scope

    @property
    def resumable(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.folder / CHECKPOINT).exists()

    def final_state(self) -> dict[str, torch.Tensor]:
        """The final weights: the moving average if there is one."""
        return self.ema if self.ema is not None else self.joint.state_dict()

    def _run_epoch(self) -> None:
        self.joint.train()
        if self.step == 0:
            self._seed_layers("layers")
            self.rng.manual_seed(epoch_seed(self.settings.seed, self.epoch, "noise"))
            self.totals = {}
            self.recipe.before_epoch(self._survey())
        start = time.perf_counter()
        for batch in self.batches.epoch(self.epoch, self.step, self.recipe.sampling()):
            metrics = self._train_step(batch)
            for name, value in metrics.items():
                before = self.totals.get(name, torch.zeros((), device=value.device))
                self.totals[name] = before + self.share.fraction * value
            self.step += 1
            if self.step % LOOK_EVERY == 0 or (self._stop and self.share.world == 1):
                self._look()
                if self._all_stop():
                    self._checkpoint()
                    raise KeyboardInterrupt
        seconds = time.perf_counter() - start
        checked = self._check()
        self._log(self._look(checked), seconds, checked)

    def _progress(self) -> Progress:
        steps, done = self.settings.epochs * len(self.batches), self.epoch * len(self.batches) + self.step
        return Progress(self.epoch, self.settings.epochs, done / steps)

    def _survey(self) -> Survey:
        """All training inputs, for a recipe that evaluates them before an epoch."""
        now, exact = self._progress(), self.settings.precision.endswith("-mixed")

        def steps() -> Iterator[Step]:
            for x, labels, places in self.batches.in_order():
                x = x if exact else x.to(next(self.joint.classifier.parameters()).dtype)  # as Fabric does in a step
                yield self.joint.step_at(x, labels, self.rng, places, now)

        return Survey(now, len(self.batches.dataset), steps, self.fabric.autocast)

    def _train_step(self, batch: Batch) -> dict[str, torch.Tensor]:
        settings, now = self.settings, self._progress()
        share = schedule(settings.schedule, now.done, sum(now.epoch >= drop for drop in settings.lr_drops or ()))
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * share
        x = batch.x
        if settings.augment:
            x = flip_and_crop(x, self.rng, settings.shift, self.share, settings.flip)
        given = Exact(x) if settings.precision.endswith("-mixed") else x
        metrics = self.wrapped(given, batch.labels, self.rng, batch.places, now.epoch, now.epochs, now.done)
        # The processes' gradients are averaged: so weighted, the average is the gradient of the whole batch's mean.
        self.fabric.backward(self.share.world * self.share.fraction * metrics["loss"])
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        if self.average is not None:
            steps = self.epoch * len(self.batches) + self.step
            # A new average decays faster: otherwise early weights dominate it, with batch statistics that do not fit.
            self.average.update(min(settings.ema, (1 + steps) / (10 + steps)))
        return {name: value.detach() for name, value in metrics.items()}

    def _sums(self) -> dict[str, torch.Tensor]:
        """The epoch's totals so far, over all processes."""
        if self.share.world == 1:
            return self.totals
        copies = {name: total.clone() for name, total in self.totals.items()}  # summed up in place
        found: dict[str, torch.Tensor] = self.fabric.all_reduce(copies, reduce_op="sum")
        return found

    def _check(self) -> Checked | None:
        """Certified accuracy on the held-out part, if it is time to look at it; the first process does that alone."""
        watch = self.watch
        if watch is None or self.rank != 0 or not watch.due(self.epoch, self.settings.epochs):
            return None
        if not _all_finite(self.final_state().values()):
            return None  # the run ends with the next loss or checkpoint, and says so
        return watch.check(self.joint, self.ema, self.fabric.device)

    def _look(self, checked: Checked | None = None) -> dict[str, float]:
        """The epoch's means so far; a loss that is not finite ends the run here, before the next checkpoint."""
        means = {name: float(total) / max(1, self.step) for name, total in self._sums().items()}
        means |= {} if checked is None else checked.metrics()
        if not math.isfinite(means.get("loss", 0.0)):
            kept = f"the checkpoint in {self.folder} is kept" if self.resumable else "nothing was saved"
            raise TrainingError(
                f"the loss became {means['loss']} in epoch {self.epoch + 1}, by step {self.step}: {kept}. "
                "A lower lr, or a smaller variance_weight, usually helps: run it again with --set, in the same folder."
            )
        if self.on_progress is not None and self.rank == 0:
            self.on_progress(self.epoch, self.step, len(self.batches), means)
        return means

    def _log(self, means: dict[str, float], seconds: float, checked: Checked | None) -> None:
        if self.rank != 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {} if checked is None else checked.about()
        line = {"epoch": self.epoch, **means, **about, "seconds": seconds}
        with writing(self.folder / METRICS):
            Journal(self.folder / METRICS).append(json.dumps(line))
            self.board.add(self.epoch, means)

    def _checkpoint_due(self) -> bool:
        """Whether to write one after this epoch: after every one, unless writing would take too much of the time."""
        last = self.epoch >= self.settings.epochs
        enough = time.perf_counter() - self._written >= self._writing / WRITING
        return last or enough or self._writing < SLOW_WRITE or self.share.world > 1

    def _checkpoint(self) -> None:
        start = time.perf_counter()
        if not _all_finite(self.joint.state_dict().values()):
            raise TrainingError(
                f"the weights stopped being finite in epoch {self.epoch + 1}; the last good checkpoint is kept. "
                "A lower lr usually helps: run it again with --set, in the same folder."
            )
        sums = self._sums()
        if self.rank == 0:
            state = {
                "epoch": self.epoch,
                "step": self.step,
                "totals": sums,
                "joint": self.joint.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
                "ema": self.ema,
                "recipe": self.recipe.state(),
                "noise": self.rng.get_state(),
                **layers_state(self.fabric.device),
            }
            write_checkpoint(self.folder, state)
        self._written = time.perf_counter()
        self._writing = self._written - start

    def _resume(self) -> None:
        state = self.fabric.broadcast(read_checkpoint(self.folder) if self.rank == 0 else None)
        if state is None:
            if self.rank == 0 and self.folder.is_dir():  # a start that left no checkpoint
                Journal(self.folder / METRICS).keep(0)
            return
        try:
            self.joint.load_state_dict(state["joint"])
            for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
                load_optimiser(optimiser, saved)
            self.recipe.load_state(state.get("recipe", {}))  # older checkpoints do not have it
        except (RuntimeError, ValueError, KeyError) as error:
            raise TrainingError(
                f"the checkpoint in {self.folder} is from another model, generator or recipe: {first_line(error)}"
            ) from error
        self.epoch, self.step = state["epoch"], state["step"]
        if self.rank == 0:
            # What was logged after the last checkpoint will be logged again.
            Journal(self.folder / METRICS).keep(self.epoch)
        own = 1.0 if self.rank == 0 else 0.0  # the sums so far are counted once
        self.totals = {name: own * total.to(self.fabric.device) for name, total in state["totals"].items()}
        if self.ema is not None:
            for name, kept in self.ema.items():
                kept.copy_(state["ema"][name])
        self.rng.set_state(state["noise"])
        restore_layers(state, self.fabric.device)
        if self.rank:
            self._seed_layers(f"layers from step {self.step} on")

    def _seed_layers(self, purpose: str) -> None:
        """Seed the random layers of the classifier (dropout), separately for every process."""
        torch.manual_seed(epoch_seed(self.settings.seed, self.epoch, purpose + f" of {self.rank}" * (self.rank > 0)))

    def _all_stop(self) -> bool:
        """Whether any process received a stop signal; then all stop, after the same step."""
        if self.share.world == 1:
            return self._stop
        told = torch.tensor(float(self._stop), device=self.fabric.device)
        return bool(self.fabric.all_reduce(told, reduce_op="sum"))

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """On Ctrl-C or SIGTERM, end the run after the current step, with a checkpoint."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(*_: Any) -> None:
            self._stop = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _compiled(classifier: Any, recorded: bool) -> Any:
    """The compiled classifier; ``recorded`` replays its kernels as graphs, since launching them takes longer than they run."""
    return torch.compile(classifier, mode="reduce-overhead") if recorded else torch.compile(classifier)


def _all_finite(values: Iterable[torch.Tensor]) -> bool:
    """Whether no tensor holds a value that is not finite; the device is asked once."""
    finite = [value.isfinite().all() for value in values if value.is_floating_point()]
    return bool(torch.stack(finite).all()) if finite else True


def _as_training_set(dataset: Any) -> Labelled:
    found = dataset if isinstance(dataset, Labelled) else as_dataset(dataset)
    if len(found) < 1:
        raise InvalidInput("the training set is empty.")
    return found


def _noise(settings: TrainSettings, dataset: Labelled, device: torch.device) -> tuple[Generator, torch.Tensor | None]:
    """The generator, and the limits of the budget that the noise is trained for; either may be made from all inputs."""
    images = dataset.batch(torch.arange(len(dataset)))[0].to(device) if settings.wants_images() else None
    generator = settings.build_generator(dataset.event_shape, images)
    budget = settings.build_budget(dataset.event_shape, images)
    return generator, None if budget is None else budget.limits


def _begin_with(settings: TrainSettings, classifier: nn.Module, finetune: str | Path | None) -> str | None:
    """Load the weights that training begins with, where there are any, and return their SHA-256, which certificates of them
    state as well (``fingerprint.weights_hash``); refuse what cannot begin without them.
    """
    if finetune is not None:
        return weights_hash(load_start(classifier, weights_file(finetune)))
    if ":" in settings.model:  # it may bring its own
        return None
    lack = f"{settings.model} has no weights yet: give them with --finetune, such as the folder of a trained run"
    if settings.denoiser is not None:
        raise TrainingError(f"a denoiser is trained in front of a trained classifier, and {lack}.")
    if settings.build_recipe().asks_first:
        raise TrainingError(
            f"[recipe] {settings.recipe['kind']} asks the network which inputs to drop before its first step, and {lack}, "
            "or set start above 0."
        )
    return None


def _fabric(accelerator: str, precision: Any) -> Any:
    try:
        from lightning_fabric import Fabric
    except ImportError:
        try:
            from lightning.fabric import Fabric  # type: ignore[no-redef]
        except ImportError as error:
            raise MissingExtra("training needs Lightning Fabric: pip install 'ucan[train]'") from error
    devices, nodes = launched()
    return Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, precision=precision)
