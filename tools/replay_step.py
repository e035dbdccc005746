#!/usr/bin/env python3
"""Recomputes a recorded GRPO step from the files of a run alone, in PyTorch float64, and compares everything.

usage: replay_step.py RUN STEP [--all]

RUN is a log_dir with samples/step_STEP.jsonl of all samples and the checkpoints of steps STEP - 1 and STEP
(checkpointing.save_period 1, logger.samples all). Nothing of this program's code is used: log-probabilities, advantages,
loss, the step's metrics, gradient norm, moments and weights follow from the published definitions.

What is allowed is stated before anything is compared: 8 times the error that PyTorch's own float32 (bfloat16 for a
bfloat16 policy) has against float64 in the same quantity, and no less than 8 units of float32's last place. Gradients and
moments count relative to the largest element of their tensor. With one update per step, new AdamW weights also follow
from the run's own recorded moments, to float32 rounding: an element whose gradient is noise moves by its learning rate
in correct code too.

Exit codes: 0 all agree, 1 something does not, 2 the step cannot be replayed. Prints a line for each quantity that does
not agree; --all prints all. Needs torch, numpy, safetensors and PyYAML.
"""

import sys
from pathlib import Path

MARGIN = 8
FLOAT32_STEP = 2.0**-23


def fail(message):
    print(f"replay_step: {message}", file=sys.stderr)
    return 2


try:
    import torch

    from replay.objective import Loss, advantages_of
    from replay.optimizer import Optimizer, adamw_weight, as_leaves, clip_factor, gradient_norm, learning_rate
    from replay.policy import Policy, response_logprobs
    from replay.run_files import CannotReplay, Run
except ImportError as error:
    if __name__ != "__main__" or {"-h", "--help"} & set(sys.argv):
        torch = None
    else:
        sys.exit(fail(f"{error.name} is missing; install torch, numpy, safetensors and PyYAML"))


class Replay:
    """All quantities of the step, by name, computed in one dtype."""

    def __init__(self, run, dtype):
        self.run = run
        self.dtype = dtype
        self.temperature = run.config["policy"]["generation"]["temperature"]
        self.values = {}  # name -> tensor
        self.keep("advantage", self.advantages())
        before = run.before.kind("weights")
        with torch.no_grad():
            prev = self.logprobs({name: value.to(dtype) for name, value in before.items()})
            self.prev = [filtered for filtered, _ in prev]
            self.keep("prev_logprobs", self.prev)
            self.keep("generation_logprobs", self.prev)
            self.reference = None
            if run.config["loss_fn"]["reference_policy_kl_penalty"] > 0:
                frozen = run.before.kind("reference")
                reference = self.logprobs({name: value.to(dtype) for name, value in frozen.items()})
                self.reference = [unfiltered.double() for _, unfiltered in reference]
                self.keep("reference_policy_logprobs", self.reference)
        self.rollout_metrics()
        self.updates()

    def keep(self, name, values):
        if isinstance(values, list):
            values = torch.cat([torch.as_tensor(v, dtype=torch.float64).reshape(-1) for v in values])
        self.values[name] = values.double()

    def metric(self, name, value):
        self.values[f"train/{name}"] = torch.tensor([float(value)], dtype=torch.float64)

    def logprobs(self, weights):
        policy = Policy(weights, self.run.before.model)
        return [response_logprobs(policy, sample, self.temperature) for sample in self.run.samples]

    def advantages(self):
        samples, grpo = self.run.samples, self.run.config["grpo"]
        weights = {reward["name"]: reward["weight"] for reward in self.run.config["env"]["rewards"]}
        self.rewards = [sum(weights[name] * part for name, part in s.reward_parts.items()) for s in samples]
        self.keep("reward", self.rewards)
        self.advantage, self.baseline = advantages_of(
            [s.group for s in samples], self.rewards, grpo["use_leave_one_out_baseline"], grpo["normalize_rewards"])
        return self.advantage

    def rollout_metrics(self):
        samples, count = self.run.samples, len(self.run.samples)
        lengths = [len(s.response_tokens) for s in samples]
        prompts = [len(s.prompt_tokens) for s in samples]
        truncated = sum(s.finish_reason == "length" for s in samples) / count
        groups = {}
        for sample, reward in zip(samples, self.rewards):
            groups.setdefault(sample.group, []).append(reward)
        same = sum(max(g) - min(g) <= 1e-9 * max(1.0, max(map(abs, g))) for g in groups.values())
        zero = sum(abs(b) <= 1e-9 for b in self.baseline) / count
        one = sum(abs(b - 1) <= 1e-9 for b in self.baseline) / count
        parts = {name: [s.reward_parts[name] for s in samples] for name in samples[0].reward_parts}
        for name, scores in parts.items():
            mean = sum(scores) / count
            self.metric(f"rewards/{name}/mean", mean)
            self.metric(f"rewards/{name}/std", (sum((x - mean) ** 2 for x in scores) / count) ** 0.5)
        for name, value in {
            "reward": sum(self.rewards) / count,
            "advantages/mean": sum(self.advantage) / count,
            "advantages/min": min(self.advantage),
            "advantages/max": max(self.advantage),
            "baseline_reward/pct_0": zero,
            "baseline_reward/pct_1": one,
            "baseline_reward/pct_mixed": 1 - zero - one,
            "frac_reward_zero_std": same / len(groups),
            "global_valid_seqs": count,
            "global_valid_toks": sum(lengths),
            "mean_prompt_length": sum(prompts) / count,
            "total_num_tokens": sum(lengths) + sum(prompts),
            "mean_gen_tokens_per_sample": sum(lengths) / count,
            "max_gen_tokens_per_sample": max(lengths),
            "truncation_rate": truncated,
            "natural_termination_rate": 1 - truncated,
            "num_valid_samples": count,
        }.items():
            self.metric(name, value)

    def updates(self):
        config, samples = self.run.config, self.run.samples
        optimizer = Optimizer(config, self.run.before, self.dtype)
        like = self.run.before.kind("weights")
        weights = as_leaves(like, self.dtype)
        size = config["policy"]["train_global_batch_size"]
        total = config["grpo"]["max_num_steps"] * (len(samples) // size)
        losses = []
        norms = []
        for begin in range(0, len(samples), size):
            chosen = range(begin, begin + size)
            loss = self.one_loss(weights, chosen, len(samples) == size)
            losses.append(loss)
            gradients = {name: leaf.grad for name, leaf in weights.items() if leaf.grad is not None}
            norms.append(gradient_norm(gradients))
            rate = learning_rate(config, optimizer.step, total)
            optimizer.update(gradients, rate, clip_factor(norms[-1], config["policy"]["max_grad_norm"]))
            new = optimizer.master if self.dtype == torch.float64 else optimizer.weights(like)
            weights = as_leaves(new, self.dtype)
        self.rate = rate
        self.metric("lr", rate)
        self.metric("grad_norm", sum(norms) / len(norms))
        self.update_metrics(losses)
        for kind, state in (("master", optimizer.master), ("m", optimizer.m), ("v", optimizer.v)):
            for name, value in state.items():
                self.values[f"{kind}/{name}"] = value.detach().double()

    def one_loss(self, weights, chosen, is_only_update):
        samples = self.run.samples
        loss = Loss(
            self.run.config["loss_fn"],
            sum(len(samples[i].response_tokens) for i in chosen),
            len(chosen),
            sum(len(samples[i].response_tokens) for i in chosen if self.rewards[i] > 0) or 1,
        )
        policy = Policy(weights, self.run.before.model)
        for i in chosen:
            filtered, unfiltered = (x.double() for x in response_logprobs(policy, samples[i], self.temperature))
            previous = filtered.detach() if is_only_update else self.prev[i].double()
            reference = None if self.reference is None else self.reference[i]
            generation = samples[i].logprobs("generation_logprobs")
            loss.sequence(filtered, unfiltered, previous, generation, reference, self.advantage[i],
                          self.rewards[i]).backward()
        return loss

    def update_metrics(self, losses):
        tokens = sum(loss.counts["token"] for loss in losses)
        self.metric("loss", sum(loss.sums["loss"] for loss in losses) / len(losses))
        for name in losses[0].sums.keys() - {"loss"}:
            self.metric(name, sum(loss.sums[name] * loss.counts["token"] for loss in losses) / tokens)
        for name in losses[0].extremes:
            self.metric(f"{name}_min", min(loss.extremes[name][0] for loss in losses))
            self.metric(f"{name}_max", max(loss.extremes[name][1] for loss in losses))
        generation = torch.cat([s.logprobs("generation_logprobs") for s in self.run.samples])
        difference = (self.values["prev_logprobs"] - generation).abs()
        self.metric("token_mult_prob_error", difference.exp().mean())


def recorded_values(run):
    """The same quantities as the run's files have them."""
    values = {}
    for name in ("generation_logprobs", "prev_logprobs", "reference_policy_logprobs"):
        parts = [sample.logprobs(name) for sample in run.samples]
        if all(part is not None for part in parts):
            values[name] = torch.cat(parts)
    values["advantage"] = torch.tensor([float(s.advantage) for s in run.samples], dtype=torch.float64)
    values["reward"] = torch.tensor([float(s.reward) for s in run.samples], dtype=torch.float64)
    for name, value in run.metrics.items():
        if name.startswith("train/"):
            values[name] = torch.tensor([value], dtype=torch.float64)
    for kind in ("master", "m", "v"):
        for name, value in run.after.kind(kind).items():
            values[f"{kind}/{name}"] = value.double()
    return values


def scale_of(name, exact):
    """What differences count relative to: a tensor's largest element for moments, else 1 or the value."""
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    return largest if name[:2] in ("m/", "v/") else max(1.0, largest)


def own_weights(run, rate):
    """(name, error in float32 steps) of weights that the run's own moments do not give; for one AdamW update."""
    kwargs = run.config["policy"]["optimizer"]["kwargs"]
    step = run.after.optimizer_steps
    for name, master in run.before.kind("master").items():
        m, v = run.after.kind("m")[name], run.after.kind("v")[name]
        wanted = adamw_weight(master.double(), m.double(), v.double(), rate, step, kwargs)
        found = run.after.kind("master")[name].double()
        size = torch.maximum(wanted.abs(), master.double().abs()) + rate
        error = float(((found - wanted).abs() / (size * FLOAT32_STEP)).max())
        if error > MARGIN:
            yield name, error


def compare(run, show_all):
    """The number of quantities that do not agree, and of all."""
    policy_dtype = next(iter(run.before.kind("weights").values())).dtype
    exact = Replay(run, torch.float64)
    rounded = Replay(run, torch.float32 if policy_dtype == torch.float32 else policy_dtype)
    found = recorded_values(run)
    step = FLOAT32_STEP if policy_dtype == torch.float32 else 2.0**-8
    wrong = 0
    for name in sorted(found.keys() & exact.values.keys()):
        want = exact.values[name]
        scale = scale_of(name, want)
        noise = float((rounded.values[name] - want).abs().max())
        allowed = MARGIN * max(noise, step * scale)
        error = float((found[name] - want).abs().max())
        agrees = error <= allowed
        wrong += not agrees
        if show_all or not agrees:
            print(f"{'ok   ' if agrees else 'WRONG'} {name}: error {error:.3g}, allowed {allowed:.3g}")
    count = len(found.keys() & exact.values.keys())
    is_adamw = run.config["policy"]["optimizer"]["name"] == "adamw"
    if is_adamw and run.after.optimizer_steps == run.before.optimizer_steps + 1:
        count += 1
        bad = list(own_weights(run, exact.rate))
        wrong += bool(bad)
        for name, error in bad:
            print(f"WRONG weights from the recorded moments: {name}: {error:.3g} float32 steps, allowed {MARGIN}")
    unknown = sorted(name for name in found.keys() - exact.values.keys() if name.startswith("train/"))
    if show_all and unknown:
        print("not replayed: " + " ".join(unknown))
    return wrong, count


def main(arguments):
    if "-h" in arguments or "--help" in arguments:
        print(__doc__.strip())
        return 0
    show_all = "--all" in arguments
    words = [word for word in arguments if word != "--all"]
    if len(words) != 2 or not words[1].isdigit() or int(words[1]) < 1:
        return fail("needs the folder of a run and a step; see --help")
    try:
        run = Run(Path(words[0]), int(words[1]))
        wrong, count = compare(run, show_all)
    except (CannotReplay, OSError, KeyError, ValueError) as error:
        return fail(f"{type(error).__name__ + ': ' if not isinstance(error, CannotReplay) else ''}{error}")
    print(f"step {words[1]}: {count - wrong} of {count} quantities agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
