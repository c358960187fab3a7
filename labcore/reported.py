"""What the course notes state about their experiments: settings and results, never measured here.

Source: course notes on optimisers and multi-GPU training, after A. Zhang, Z. Lipton, M. Li and
A. Smola, Dive into Deep Learning, chapter "Optimization Algorithms".
"""

from labcore.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer, RMSprop

AIRFOIL_PRESETS: tuple[Optimizer, ...] = (
    SGD(lr=0.01),
    Momentum(lr=0.005, momentum=0.9),
    Adagrad(lr=0.1),
    RMSprop(lr=0.01, alpha=0.9),
    Adam(lr=0.01),
)
"""The five optimisers that the notes train on airfoil self-noise: 4 epochs, batch size 10, MSE."""

AIRFOIL_LOSS_AXIS = (0.22, 0.35)
"""The vertical axis of the notes' loss curves, in ½ MSE."""
