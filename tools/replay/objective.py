"""Advantages, the clipped loss and its metrics, from the published definitions (NeMo-RL's; the README's section Loss)."""

import math

import torch

STD_EPSILON = 1e-6


def advantages_of(groups, rewards, leave_one_out, normalize):
    """(advantage, baseline) per sample."""
    advantages, baselines = [], []
    for i, group in enumerate(groups):
        members = [j for j, other in enumerate(groups) if other == group]
        used = [rewards[j] for j in members if len(members) == 1 or not leave_one_out or j != i]
        mean = math.fsum(used) / len(used)
        spread = max(used) - min(used)
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in used) / (len(used) - 1)) if len(used) > 1 and spread > 0 else 0.0
        mean = used[0] if spread == 0 else mean
        advantage = rewards[i] - mean
        advantages.append(advantage / (std + STD_EPSILON) if normalize and std > 0 else advantage)
        baselines.append(mean)
    return advantages, baselines


def kl_of(kind, q):
    return {"k1": lambda: -q, "k2": lambda: q * q / 2, "k3": lambda: torch.exp(q) - 1 - q}[kind]()


def finite(x):
    return torch.where(torch.isfinite(x), x, torch.zeros_like(x))


def in_bounds(config, ratio):
    lower = config["truncated_importance_sampling_ratio_min"] or 0.0
    upper = config["truncated_importance_sampling_ratio"]
    return (ratio >= lower) & (ratio <= (math.inf if upper is None else upper))


class Loss:
    """Sums over the sequences of one update; finish() divides by the update's global counts."""

    def __init__(self, config, num_tokens, num_sequences, num_positive):
        self.config = config
        self.counts = {"token": num_tokens, "sequence": num_sequences, "positive": num_positive}
        self.sums = {}
        self.extremes = {}

    def weigh(self, values, length):
        """A sequence's part of the loss."""
        if self.config["token_level_loss"]:
            return values.sum() / self.counts["token"]
        return values.sum() / length / self.counts["sequence"]

    def add(self, name, value):
        self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def add_extremes(self, name, values):
        low, high = self.extremes.get(name, (math.inf, -math.inf))
        self.extremes[name] = (min(low, float(values.min())), max(high, float(values.max())))

    def kl_term(self, unfiltered, g, reference):
        config = self.config
        q = reference - unfiltered
        bound = config["kl_input_clamp_value"]
        clamped = q if bound is None else q.clamp(-bound, bound)
        acts = clamped != q
        if config["use_on_policy_kl_approximation"]:
            weight = finite(torch.exp(unfiltered - g))
        else:
            weight = torch.exp(unfiltered - unfiltered.detach())
        weight = torch.where(acts, weight.detach(), weight)
        kl = weight * kl_of(config["reference_policy_kl_type"], clamped)
        bound = config["kl_output_clamp_value"]
        return kl if bound is None else kl.clamp(-bound, bound)

    def importance_weights(self, p, g):
        """(weight, share out of bounds) as the metrics count them."""
        config = self.config
        kind = config["truncated_importance_sampling_type"]
        log_ratio = p - g
        if config["sequence_level_importance_ratios"]:
            weight = finite(torch.exp(log_ratio.sum())).expand(len(p))
        else:
            weight = finite(torch.exp(log_ratio))
        if kind == "seq-mask-tis":
            outside = not bool(in_bounds(config, torch.exp(log_ratio.mean())))
            return weight * (0.0 if outside else 1.0), torch.tensor(float(outside))
        if kind is None:
            return weight, torch.zeros(len(p))
        outside = ~in_bounds(config, weight)
        if kind == "icepop":
            return torch.where(outside, torch.zeros_like(weight), weight), outside.double()
        lower = config["truncated_importance_sampling_ratio_min"] or 0.0
        upper = config["truncated_importance_sampling_ratio"]
        return weight.clamp(lower, math.inf if upper is None else upper), outside.double()

    def sequence(self, c, unfiltered, p, g, reference, advantage, reward):
        """This sequence's part of the update's loss, with its gradient; adds to the metrics."""
        config = self.config
        length = len(c)
        if config["force_on_policy_ratio"]:
            p = c.detach()
        ratio = c - p
        if config["sequence_level_importance_ratios"]:
            ratio = ratio.mean().expand(length)
        ratio = torch.exp(ratio)
        low, high = 1 - config["ratio_clip_min"], 1 + config["ratio_clip_max"]
        if config["disable_ppo_ratio"]:
            ratio = clipped = c
            term = -advantage * c
        else:
            clipped = ratio.clamp(low, high)
            term = torch.maximum(-advantage * ratio, -advantage * clipped)
            if config["ratio_clip_c"] is not None and advantage < 0:
                term = torch.minimum(term, torch.full_like(term, -advantage * config["ratio_clip_c"]))
        if config["use_cispo"]:
            term = -advantage * clipped.detach() * c
        weight, outside = self.importance_weights(p.detach(), g)
        if config["use_importance_sampling_correction"]:
            term = term * weight.detach()
        loss = self.weigh(term, length)
        penalty = config["reference_policy_kl_penalty"]
        if penalty > 0:
            kl = self.kl_term(unfiltered, g, reference)
            self.add("kl_penalty", self.weigh(kl, length).detach())
            loss = loss + penalty * self.weigh(kl, length)
        if config["positive_example_nll_weight"] > 0 and reward > 0:
            loss = loss - config["positive_example_nll_weight"] * c.sum() / self.counts["positive"]
        self.metrics(c.detach(), p.detach(), g, ratio.detach(), clipped.detach(), weight.detach(), outside)
        self.add("loss", loss.detach())
        return loss

    def metrics(self, c, p, g, ratio, clipped, weight, outside):
        config = self.config
        kind = config["reference_policy_kl_type"]
        tokens = self.counts["token"]

        def token_mean(name, values):
            self.add(name, values.sum() / tokens)

        token_mean("probs_ratio", ratio)
        token_mean("probs_ratio_clamped", clipped)
        token_mean("clip_ratio/low", (ratio < clipped).double())
        token_mean("clip_ratio/high", (ratio > clipped).double())
        self.add_extremes("probs_ratio", ratio)
        self.add_extremes("probs_ratio_clamped", clipped)
        token_mean("gen_kl_error", kl_of(kind, p - g))
        token_mean("policy_kl_error", kl_of(kind, g - p))
        middle = torch.log((torch.exp(p) + torch.exp(g)) / 2)
        token_mean("js_divergence_error", (kl_of("k3", p - middle) + kl_of("k3", g - middle)) / 2)
        token_mean("approx_entropy", -torch.exp(c - g) * c)
        if config["sequence_level_importance_ratios"]:
            self.add("sampling_importance_ratio", weight[0] / self.counts["sequence"])
        else:
            token_mean("sampling_importance_ratio", weight)
        if config["truncated_importance_sampling_type"] == "seq-mask-tis":
            self.add("is_oob_ratio", outside / self.counts["sequence"])
        else:
            token_mean("is_oob_ratio", outside)
