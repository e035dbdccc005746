"""The files of a run that a replay reads: config, records of a step's samples, checkpoints, metrics."""

import gzip
import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
import yaml
from safetensors.torch import load_file

SCHEMA_VERSION = 1


class CannotReplay(Exception):
    """The run's files do not hold what a replay of this step needs."""


@dataclass
class Kept:
    """The tokens that the filters kept for each response token: ids, or (above, last_tie) without ids."""

    ids: list  # of int64 tensors, empty where a threshold holds
    thresholds: list  # of (float, int) or None


@dataclass
class Sample:
    record: dict
    kept: Kept | None

    def __getattr__(self, name):
        return self.record[name]

    @property
    def tokens(self):
        return self.prompt_tokens + self.response_tokens

    def logprobs(self, name):
        values = self.record[name]
        return None if values is None else torch.tensor([float(v) for v in values], dtype=torch.float64)


def read_kept(blob, place, num_tokens):
    data = blob[place["offset"] : place["offset"] + place["bytes"]]
    ends = struct.unpack_from(f"<{num_tokens}I", data, 0)
    ids = numpy.frombuffer(data, "<u4", place["num_ids"], 4 * num_tokens).astype(numpy.int64)
    at = 4 * (num_tokens + place["num_ids"])
    kept = Kept([], [])
    begin = 0
    for t, end in enumerate(ends):
        kept.ids.append(torch.from_numpy(ids[begin:end].copy()))
        begin = end
        kept.thresholds.append(struct.unpack_from("<di", data, at + 12 * t) if place["has_thresholds"] else None)
    return kept


def read_samples(run, step):
    stem = run / "samples" / f"step_{step}"
    plain, packed = Path(f"{stem}.jsonl"), Path(f"{stem}.jsonl.gz")
    if plain.is_file():
        lines = plain.read_text(encoding="utf-8").splitlines()
    elif packed.is_file():
        lines = gzip.decompress(packed.read_bytes()).decode("utf-8").splitlines()
    else:
        raise CannotReplay(f"{plain}: not there; record the step with logger.samples=all")
    records = [json.loads(line) for line in lines]
    versions = {record.get("schema_version") for record in records}
    if versions != {SCHEMA_VERSION}:
        raise CannotReplay(f"{stem}.jsonl: schema_version {versions}; this program reads {SCHEMA_VERSION}")
    blob = b""
    if any(record["kept_tokens"] for record in records):
        blob = gzip.decompress(Path(f"{stem}.kept").read_bytes())
    samples = []
    for record in records:
        place = record["kept_tokens"]
        kept = None if place is None else read_kept(blob, place, len(record["response_tokens"]))
        samples.append(Sample(record, kept))
    return samples


def read_metrics(run, step):
    with open(run / "metrics.jsonl", encoding="utf-8") as lines:
        for line in lines:
            metrics = json.loads(line)
            if metrics["step"] == step:
                return {name: float(value) for name, value in metrics.items()}
    raise CannotReplay(f"{run / 'metrics.jsonl'}: has no step {step}")


class Checkpoint:
    """Tensors of a checkpoint by kind (weights, master, m, v, reference) and Hugging Face name."""

    def __init__(self, folder):
        if not (folder / "manifest.json").is_file():
            raise CannotReplay(f"{folder}: no finished checkpoint; run with checkpointing.save_period=1")
        self.manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.model = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.kinds = {}
        for file in sorted(folder.glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                kind, parameter = name.split("/", 1)
                self.kinds.setdefault(kind, {})[parameter] = tensor

    @property
    def optimizer_steps(self):
        return self.manifest["state"]["optimizer_steps"]

    def kind(self, name):
        return self.kinds.get(name, {})


class Run:
    def __init__(self, folder, step):
        self.folder = Path(folder)
        self.step = step
        config = self.folder / "config.yaml"
        if not config.is_file():
            raise CannotReplay(f"{config}: not there")
        self.config = yaml.safe_load(config.read_text(encoding="utf-8"))
        if self.config.get("algorithm", "grpo") != "grpo":
            raise CannotReplay(f"{config}: algorithm {self.config['algorithm']}; a replay needs grpo")
        parent = Path(self.config["checkpointing"]["checkpoint_dir"] or self.folder / "checkpoints")
        self.before = Checkpoint(parent / f"step_{step - 1}")
        self.after = Checkpoint(parent / f"step_{step}")
        self.samples = read_samples(self.folder, step)
        grpo = self.config["grpo"]
        wanted = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
        if len(self.samples) != wanted:
            raise CannotReplay(f"step {step}: {len(self.samples)} samples of {wanted} are recorded")
        self.metrics = read_metrics(self.folder, step)
