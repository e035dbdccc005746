"""The forward pass of a Qwen2-style model and the log-probabilities of recorded responses, in one torch dtype."""

import torch
import torch.nn.functional as F


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Policy:
    """`weights` by Hugging Face name; the caller decides dtype and requires_grad."""

    def __init__(self, weights, config):
        self.weights = weights
        self.config = config
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
        self.frequencies = 1.0 / float(theta) ** steps

    def linear(self, x, name):
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def attention(self, x, prefix, cos, sin):
        length = x.shape[0]

        def heads_of(name, count):
            return self.linear(x, f"{prefix}.{name}_proj").view(length, count, self.head_dim).transpose(0, 1)

        q, k = (rotate(heads_of(name, count), cos, sin) for name, count in (("q", self.heads), ("k", self.kv_heads)))
        v = heads_of("v", self.kv_heads)
        shared = self.heads // self.kv_heads
        k, v = k.repeat_interleave(shared, 0), v.repeat_interleave(shared, 0)
        scores = q @ k.transpose(1, 2) / self.head_dim**0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = torch.softmax(scores.masked_fill(future, -torch.inf), -1) @ v
        return self.linear(mixed.transpose(0, 1).reshape(length, -1), f"{prefix}.o_proj")

    def logits(self, tokens):
        """[T, V] of one sequence."""
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[torch.tensor(tokens)]
        angles = torch.arange(len(tokens), dtype=torch.float64)[:, None] * self.frequencies
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        eps = self.config["rms_norm_eps"]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            normed = rms_norm(x, self.weights[f"{prefix}.input_layernorm.weight"], eps)
            x = x + self.attention(normed, f"{prefix}.self_attn", cos, sin)
            normed = rms_norm(x, self.weights[f"{prefix}.post_attention_layernorm.weight"], eps)
            gated = F.silu(self.linear(normed, f"{prefix}.mlp.gate_proj")) * self.linear(normed, f"{prefix}.mlp.up_proj")
            x = x + self.linear(gated, f"{prefix}.mlp.down_proj")
        x = rms_norm(x, self.weights["model.norm.weight"], eps)
        return F.linear(x, self.weights.get("lm_head.weight", embedding))


def kept_mask(kept, t, relative):
    """Which tokens of row t count; `relative` are its scaled logits minus their log-sum-exp, in float64."""
    if len(kept.ids[t]) > 0:
        mask = torch.zeros(relative.shape[0], dtype=torch.bool)
        mask[kept.ids[t]] = True
        return mask
    if kept.thresholds[t] is None:
        return torch.ones(relative.shape[0], dtype=torch.bool)
    above, last_tie = kept.thresholds[t]
    ids = torch.arange(relative.shape[0])
    return (relative > above) | ((relative == above) & (ids <= last_tie))


def response_logprobs(policy, sample, temperature):
    """(over the kept tokens, over the whole vocabulary) per response token."""
    first = len(sample.prompt_tokens) - 1
    rows = policy.logits(sample.tokens)[first:-1]
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    scaled = rows.to(wide) / temperature
    targets = torch.tensor(sample.response_tokens)[:, None]
    unfiltered = torch.log_softmax(scaled, -1).gather(1, targets)[:, 0]
    if sample.kept is None:
        return unfiltered, unfiltered
    with torch.no_grad():
        exact = scaled.double()
        relative = exact - torch.logsumexp(exact, -1, keepdim=True)
        masks = torch.stack([kept_mask(sample.kept, t, relative[t]) for t in range(len(relative))])
        masks.scatter_(1, targets, True)
    filtered = scaled.masked_fill(~masks, -torch.inf)
    return torch.log_softmax(filtered, -1).gather(1, targets)[:, 0], unfiltered
