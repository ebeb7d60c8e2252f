"""torch's optimizers, free of the wrappers that hide them from ``torch.compile``.

The first call of a wrapped method imports the whole compiler, which takes as long as importing torch. Nothing is
compiled here, and what is inside the wrappers is the same arithmetic. Where a method has no wrapper it stays as it is.
"""

from inspect import unwrap

import torch


class Adam(torch.optim.Adam):
    """Adam and AMSGrad."""

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay."""

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class SGD(torch.optim.SGD):
    """Stochastic gradient descent."""

    add_param_group = unwrap(torch.optim.SGD.add_param_group)
    zero_grad = unwrap(torch.optim.SGD.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.SGD.step))
