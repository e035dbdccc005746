"""Learning rate, clipping and the two optimizers, in the dtype of the tensors given."""

import math

import torch


def learning_rate(config, step, total_steps):
    """Of update `step`, 0-based over the run."""
    scheduler = config["policy"]["scheduler"]
    base = config["policy"]["optimizer"]["kwargs"]["lr"]
    warmup = scheduler["warmup_steps"]
    if step < warmup:
        return base * (step + 1) / warmup
    if scheduler["name"] == "constant":
        return base
    end = scheduler["decay_steps"] or total_steps
    least = scheduler["min_lr_ratio"]
    if step >= end:
        return base * least
    progress = (step - warmup) / (end - warmup)
    remaining = 0.5 * (1 + math.cos(math.pi * progress)) if scheduler["name"] == "cosine" else 1 - progress
    return base * (least + (1 - least) * remaining)


def gradient_norm(gradients):
    return math.sqrt(math.fsum(float(g.double().pow(2).sum()) for g in gradients.values()))


def clip_factor(norm, max_norm):
    return min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0


def decays(parameter):
    return parameter.ndim >= 2


def adamw_weight(master, m, v, rate, step, kwargs):
    """AdamW with decoupled decay (Loshchilov & Hutter, 2019) from moments that hold the gradient already."""
    beta1, beta2 = kwargs["betas"]
    decayed = master * (1 - rate * kwargs["weight_decay"]) if decays(master) else master
    denominator = v.sqrt() / math.sqrt(1 - beta2**step) + kwargs["eps"]
    return decayed - rate / (1 - beta1**step) * m / denominator


class Optimizer:
    """State of all parameters, by name; update() applies one step in place."""

    def __init__(self, config, checkpoint, dtype):
        self.name = config["policy"]["optimizer"]["name"]
        self.kwargs = config["policy"]["optimizer"]["kwargs"]
        self.master = {name: value.to(dtype) for name, value in checkpoint.kind("master").items()}
        self.m = {name: value.to(dtype) for name, value in checkpoint.kind("m").items()}
        self.v = {name: value.to(dtype) for name, value in checkpoint.kind("v").items()}
        self.step = checkpoint.optimizer_steps

    def update(self, gradients, rate, factor):
        self.step += 1
        for name, gradient in gradients.items():
            gradient = gradient.to(self.master[name].dtype) * factor
            if self.name == "sgd":
                decay = 1 - rate * self.kwargs["weight_decay"] if decays(gradient) else 1.0
                self.master[name] = self.master[name] * decay - rate * gradient
                continue
            beta1, beta2 = self.kwargs["betas"]
            self.m[name] = beta1 * self.m[name] + (1 - beta1) * gradient
            self.v[name] = beta2 * self.v[name] + (1 - beta2) * gradient * gradient
            self.master[name] = adamw_weight(
                self.master[name], self.m[name], self.v[name], rate, self.step, self.kwargs)

    def weights(self, like):
        """As the model computes with them: in the dtype of the checkpoint's weights."""
        return {name: value.to(like[name].dtype) for name, value in self.master.items()}


def as_leaves(weights, dtype):
    return {name: value.to(dtype).detach().requires_grad_(True) for name, value in weights.items()}


__all__ = ["Optimizer", "adamw_weight", "as_leaves", "clip_factor", "gradient_norm", "learning_rate", "torch"]
