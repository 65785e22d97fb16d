"""A convolutional network rewritten for votes on a GPU: the same function in fewer passes over its memory.

- Batch norm becomes a part of the convolution before it, computed in float64 from the network's own weights.
- A convolution, its bias, a sum with the shortcut and ReLU are one kernel of cuDNN, where a compiler would write the
  convolution's result, read it and write it again.
- A first convolution of few channels with a stride becomes one of many channels without: neighbouring pixels become
  channels. With three channels most of a matrix unit would multiply zeros.

What is rewritten is the graph that ``torch.export`` finds; a network that it does not understand is not folded.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn

A = torch.ops.aten
RELU = (A.relu.default, A.relu_.default)
ADD = (A.add.Tensor, A.add_.Tensor)
# A convolution of so few channels, and with a stride, is turned into one of more.
FEW = 4
# Channels come in multiples of this, or cuDNN copies its input first.
ALIGNED = 8


@torch.library.custom_op("ucan::conv_relu", mutates_args=())
def conv_relu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: list[int], padding: list[int]
) -> torch.Tensor:
    """max(0, weight * x + bias)."""
    if x.is_cuda:
        fused: torch.Tensor = A.cudnn_convolution_relu(x, weight, bias, stride, padding, [1, 1], 1)
        return fused
    plain: torch.Tensor = A.conv2d(x, weight, bias, stride, padding).relu()
    return plain


@torch.library.custom_op("ucan::conv_add_relu", mutates_args=())
def conv_add_relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    stride: list[int],
    padding: list[int],
    other: torch.Tensor,
) -> torch.Tensor:
    """max(0, weight * x + bias + other)."""
    if x.is_cuda:
        fused: torch.Tensor = A.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, stride, padding, [1, 1], 1)
        return fused
    plain: torch.Tensor = (A.conv2d(x, weight, bias, stride, padding) + other).relu()
    return plain


@conv_relu.register_fake
def _(x, weight, bias, stride, padding):  # type: ignore[no-untyped-def]
    return A.conv2d(x, weight, bias, stride, padding).contiguous(memory_format=torch.channels_last)


@conv_add_relu.register_fake
def _(x, weight, bias, stride, padding, other):  # type: ignore[no-untyped-def]
    return A.conv2d(x, weight, bias, stride, padding).contiguous(memory_format=torch.channels_last)


def folded(twin: nn.Module, source: nn.Module, example: torch.Tensor, narrow: int = 0) -> nn.Module | None:
    """A network that answers batches of the example's shape as ``twin`` does; None where there is nothing to fold, or where
    ``torch.export`` cannot follow the network.

    ``source`` is the network with the weights as they were before they were rounded to the twin's precision. Convolutions
    with no more than ``narrow`` channels on either side stay convolutions, for a compiler that knows better kernels.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about itself
        try:
            exported = torch.export.export(twin, (example,)).module()
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the exporter's errors have no common kind, and the network's own code may raise any
            return None
        for node in list(exported.graph.nodes):  # checks of the input's shape, which is always the example's
            if node.op == "call_module" and not node.users:
                exported.graph.erase_node(node)
        folding = _Folding(exported, dict(_tensors(source)), example, narrow)
        if not folding.batch_norms():
            return None
        folding.narrow_inputs()
        folding.activations()
        exported.graph.eliminate_dead_code()
        exported.graph.lint()
        exported.recompile()
    return exported


def _tensors(module: nn.Module):  # type: ignore[no-untyped-def]
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


@dataclass(frozen=True)
class _Convolution:
    """A two-dimensional convolution in the graph, with its arguments by name."""

    node: fx.Node
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    stride: list[int]
    padding: list[int]

    @staticmethod
    def of(node: object) -> _Convolution | None:
        """None for anything else, and for one that is dilated, in groups or padded by a word."""
        if not isinstance(node, fx.Node) or node.target is not A.conv2d.default:
            return None
        given = (*node.args, *(None, None, None, (1, 1), (0, 0), (1, 1), 1)[len(node.args) :])
        x, weight, bias, stride, padding, dilation, groups = cast("Any", given)
        if list(dilation) != [1, 1] or groups != 1 or node.kwargs:
            return None
        return _Convolution(node, x, weight, bias, list(stride), list(padding))

    @property
    def alone(self) -> bool:
        """Whether its result goes to one place only."""
        return len(self.node.users) == 1


class _Folding:
    """One graph on its way; every step replaces nodes by fewer."""

    def __init__(self, module: fx.GraphModule, exact: dict[str, torch.Tensor], example: torch.Tensor, narrow: int):
        self.module = module
        self.graph = module.graph
        self.exact = exact
        self.dtype = example.dtype
        self.narrow = narrow
        self.made = 0

    def batch_norms(self) -> int:
        """Fold each batch norm on fixed statistics into the convolution before it; how many there were."""
        found = 0
        for node in list(self.graph.nodes):
            if node.target is not A.batch_norm.default or node.args[5]:
                continue
            conv = self.convolution(node.args[0])
            if conv is None or not conv.alone or not all(map(self.known, node.args[1:5])):
                continue
            gamma, beta, mean, var = (self.value(each) for each in node.args[1:5])
            factor = gamma / (var + node.args[7]).sqrt()
            bias = -mean if conv.bias is None else self.value(conv.bias) - mean
            self.replace(node, conv, self.value(conv.weight) * factor[:, None, None, None], bias * factor + beta)
            self.graph.erase_node(conv.node)
            found += 1
        return found

    def narrow_inputs(self) -> None:
        """Turn convolutions of few channels with a stride into convolutions of more channels without one."""
        for node in list(self.graph.nodes):
            conv = self.convolution(node)
            if conv is None or conv.bias is None or conv.stride[0] != conv.stride[1] or conv.stride[0] == 1:
                continue
            weight = self.value(conv.weight)
            if weight.shape[1] <= FEW:
                self.gather(conv, weight)

    def gather(self, conv: _Convolution, weight: torch.Tensor) -> None:
        """x → its stride × stride neighbours as channels; the kernel's taps are sorted in the same way."""
        s, (outputs, channels) = conv.stride[0], weight.shape[:2]
        blocks, pads, taps = [], [], []
        for size, kernel, padding in zip(conv.x.meta["val"].shape[2:], weight.shape[2:], conv.padding, strict=True):
            before = math.ceil(padding / s)  # in blocks of s pixels
            first = before * s - padding  # where the kernel begins in its first block
            tap = math.ceil((kernel + first) / s)
            block = (size + 2 * padding - kernel) // s + tap
            blocks.append(block)
            taps.append(tap)
            pads.append((before * s, (block - before) * s - size, first, tap * s - kernel - first))
        (top, bottom, up, down), (left, right, back, on) = pads
        wide = nn.functional.pad(weight, (back, on, up, down))
        wide = wide.reshape(outputs, channels, taps[0], s, taps[1], s).permute(0, 3, 5, 1, 2, 4)
        wide = wide.reshape(outputs, s * s * channels, *taps)
        extra = -wide.shape[1] % ALIGNED
        wide = nn.functional.pad(wide, (0, 0, 0, 0, 0, extra))
        n = conv.x.meta["val"].shape[0]
        with self.graph.inserting_before(conv.node):
            call = self.graph.call_function
            x = call(A.pad.default, (conv.x, [left, right, top, bottom]))
            x = call(A.reshape.default, (x, [n, channels, blocks[0], s, blocks[1], s]))
            x = call(A.permute.default, (x, [0, 3, 5, 1, 2, 4]))
            x = call(A.reshape.default, (x, [n, s * s * channels, *blocks]))
            x = call(A.pad.default, (x, [0, 0, 0, 0, 0, extra])) if extra else x
            x = call(A.contiguous.default, (x,), {"memory_format": torch.channels_last})
        now = _Convolution(conv.node, x, conv.weight, conv.bias, [1, 1], [0, 0])
        assert conv.bias is not None
        self.replace(conv.node, now, wide, self.value(conv.bias))

    def activations(self) -> None:
        """Take ReLU, and a sum before it, into the convolution."""
        order = {node: place for place, node in enumerate(self.graph.nodes)}
        for node in list(self.graph.nodes):
            if node.target not in RELU:
                continue
            before = node.args[0]
            conv = self.fusible(before)
            if conv is not None:
                arguments = (conv.x, conv.weight, conv.bias, conv.stride, conv.padding)
                self.put(node, torch.ops.ucan.conv_relu.default, arguments)
            elif before.target in ADD and len(before.users) == 1 and len(before.args) == 2 and not before.kwargs:
                pair = [each for each in map(self.fusible, before.args) if each is not None]
                if pair and before.args[0] is not before.args[1] and _same_shape(*before.args):
                    last = max(pair, key=lambda each: order.get(each.node, 0))
                    self.join(node, last, next(each for each in before.args if each is not last.node))

    def join(self, relu: fx.Node, conv: _Convolution, other: fx.Node) -> None:
        """Take the sum of a convolution and something else into it, with the bias of another convolution as well."""
        bias, beside = conv.bias, self.fusible(other)
        assert bias is not None
        if beside is not None and beside.bias is not None:
            both = self.value(bias) + self.value(beside.bias)
            with self.graph.inserting_before(beside.node):
                plain = (beside.x, beside.weight, None, beside.stride, beside.padding)
                other = self.graph.call_function(A.conv2d.default, plain)
            with self.graph.inserting_before(relu):
                bias = self.constant(both)
        arguments = (conv.x, conv.weight, bias, conv.stride, conv.padding, other)
        self.put(relu, torch.ops.ucan.conv_add_relu.default, arguments)

    def fusible(self, node: object) -> _Convolution | None:
        """A convolution with a bias, wide enough, whose result goes to one place only."""
        conv = self.convolution(node)
        if conv is None or not conv.alone or conv.bias is None:
            return None
        outputs, inputs = self.value(conv.weight).shape[:2]
        return conv if max(outputs, inputs) > self.narrow else None

    # --- nodes and constants ---

    def convolution(self, node: object) -> _Convolution | None:
        """A convolution with the network's own weights; None for one that computes them first, as weight norm does."""
        conv = _Convolution.of(node)
        if conv is None or not self.known(conv.weight) or not (conv.bias is None or self.known(conv.bias)):
            return None
        return conv

    def known(self, node: object) -> bool:
        """Whether this is a constant of the graph."""
        return isinstance(node, fx.Node) and node.op == "get_attr" and str(node.target) in self.exact

    def value(self, node: object) -> torch.Tensor:
        """A constant of the graph in float64, as exact as it is known."""
        assert isinstance(node, fx.Node)
        return self.exact[str(node.target)].detach().double()

    def constant(self, value: torch.Tensor) -> fx.Node:
        """A new constant, rounded to the network's precision."""
        name = f"folded_{self.made}"
        self.made += 1
        rounded = value.to(self.dtype)
        layout = torch.channels_last if value.ndim == 4 else torch.contiguous_format
        self.module.register_buffer(name, rounded.contiguous(memory_format=layout))
        self.exact[name] = value
        return self.graph.get_attr(name)

    def replace(self, node: fx.Node, conv: _Convolution, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Put a convolution with other constants in a node's place."""
        with self.graph.inserting_before(node):
            constants = self.constant(weight), self.constant(bias)
        self.put(node, A.conv2d.default, (conv.x, *constants, conv.stride, conv.padding))

    def put(self, node: fx.Node, target: object, arguments: tuple[object, ...]) -> None:
        """Put a call in a node's place."""
        with self.graph.inserting_before(node):
            new = self.graph.call_function(target, arguments)  # type: ignore[arg-type]
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)


def _same_shape(one: object, other: object) -> bool:
    return all(isinstance(each, fx.Node) for each in (one, other)) and (
        one.meta["val"].shape == other.meta["val"].shape  # type: ignore[attr-defined]
    )
