"""The names of the built-in models, kept separate so that help texts can show them without importing PyTorch."""

NAMES = (
    "cnn",
    "cnn_hidden",
    "lenet",
    "resnet20",
    "resnet56",
    "resnet110",
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v2_rotated",
)
