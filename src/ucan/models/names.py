"""The names of the built-in models, apart from the models: they are shown in help texts, which need no PyTorch."""

NAMES = (
    "cnn",
    "resnet20",
    "resnet56",
    "resnet110",
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v2_rotated",
)
