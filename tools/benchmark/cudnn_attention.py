#!/usr/bin/env python3
"""Times cuDNN's causal attention, forward and deterministic backward, beside grpo_benchmark --kernels.

usage: cudnn_attention.py [SEQUENCES LENGTH HEADS KV_HEADS HEAD_DIM]    without sizes: Qwen2.5-0.5B's, 16 x 1024 tokens

Needs a GPU, PyTorch and the package nvidia-cudnn-frontend. Sequences lie packed one after the other, as in this
program's batches: once as a dense batch of equal lengths, once with their lengths given (ragged).
"""

import math
import statistics
import sys

WARM_UP = 5
REPEATS = 30
COMPARISONS = 20


class Attention:
    """Operands of one shape and cuDNN's graphs over them."""

    def __init__(self, sequences, length, heads, kv_heads, head_dim, is_ragged):
        self.sequences, self.length, self.is_ragged = sequences, length, is_ragged
        self.scale = 1 / math.sqrt(head_dim)
        self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)

        def packed(num_heads):
            values = torch.randn(sequences, length, num_heads, head_dim, device="cuda", dtype=torch.bfloat16)
            return values.transpose(1, 2)

        self.q, self.k, self.v, self.dout = packed(heads), packed(kv_heads), packed(kv_heads), packed(heads)
        self.out, self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (self.q, self.q, self.k, self.v))
        self.stats = torch.empty(sequences, heads, length, 1, device="cuda", dtype=torch.float32)

    def operand(self, graph, feed, values, offsets=None):
        tensor = graph.tensor_like(values)
        feed[tensor] = values
        if offsets is not None:
            tensor.set_ragged_offset(offsets)
        return tensor

    def result(self, feed, tensor, values, offsets=None):
        tensor.set_output(True).set_dim(list(values.size())).set_stride(list(values.stride()))
        if offsets is not None:
            tensor.set_ragged_offset(offsets)
        feed[tensor] = values

    def start(self):
        """A graph, its operands so far, offsets of queries and of keys, and the options of ragged batches."""
        graph = cudnn.pygraph(io_data_type=cudnn.data_type.BFLOAT16, intermediate_data_type=cudnn.data_type.FLOAT,
                              compute_data_type=cudnn.data_type.FLOAT, handle=self.handle)
        feed = {}
        if not self.is_ragged:
            return graph, feed, None, None, {}
        lengths = torch.full((self.sequences, 1, 1, 1), self.length, device="cuda", dtype=torch.int32)

        def offsets(values):
            row = values.size(1) * values.size(3)
            starts = torch.arange(self.sequences + 1, device="cuda", dtype=torch.int64) * self.length * row
            return self.operand(graph, feed, starts.view(-1, 1, 1, 1))

        length = self.operand(graph, feed, lengths)
        options = {"use_padding_mask": True, "seq_len_q": length, "seq_len_kv": length}
        return graph, feed, offsets(self.q), offsets(self.k), options

    def finish(self, graph, feed):
        """The call, and its workspace in bytes."""
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A])
        graph.check_support()
        graph.build_plans()
        workspace = torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8)
        return (lambda: graph.execute(feed, workspace, handle=self.handle)), workspace.numel()

    def forward(self):
        graph, feed, of_q, of_k, options = self.start()
        out, stats = graph.sdpa(name="forward", q=self.operand(graph, feed, self.q, of_q),
                                k=self.operand(graph, feed, self.k, of_k), v=self.operand(graph, feed, self.v, of_k),
                                generate_stats=True, attn_scale=self.scale, use_causal_mask=True, **options)
        self.result(feed, out, self.out, of_q)
        stats.set_output(True).set_data_type(cudnn.data_type.FLOAT)
        feed[stats] = self.stats
        return self.finish(graph, feed)

    def backward(self):
        graph, feed, of_q, of_k, options = self.start()
        if self.is_ragged:
            tokens = self.sequences * self.length
            options.update(max_total_seq_len_q=tokens, max_total_seq_len_kv=tokens)
        gradients = graph.sdpa_backward(
            name="backward", q=self.operand(graph, feed, self.q, of_q), k=self.operand(graph, feed, self.k, of_k),
            v=self.operand(graph, feed, self.v, of_k), o=self.operand(graph, feed, self.out, of_q),
            dO=self.operand(graph, feed, self.dout, of_q), stats=self.operand(graph, feed, self.stats),
            attn_scale=self.scale, use_causal_mask=True, use_deterministic_algorithm=True, **options)
        for tensor, values, offsets in zip(gradients, (self.dq, self.dk, self.dv), (of_q, of_k, of_k)):
            self.result(feed, tensor, values, offsets)
        return self.finish(graph, feed)


def microseconds(call):
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return statistics.median(times)


def measure(sizes, is_ragged):
    attention = Attention(*sizes, is_ragged)
    forward, _ = attention.forward()
    forward()
    backward, workspace = attention.backward()
    backward()
    torch.cuda.synchronize()
    gradients = (attention.dq, attention.dk, attention.dv)
    first = [x.clone() for x in gradients]
    is_same = True
    for _ in range(COMPARISONS):
        backward()
        torch.cuda.synchronize()
        is_same = is_same and all(torch.equal(a, b) for a, b in zip(first, gradients))
    print(f"{'ragged' if is_ragged else 'dense':6}  forward {microseconds(forward):6.1f} us  "
          f"backward {microseconds(backward):6.1f} us  workspace {workspace / 2**20:.0f} MiB  "
          f"{COMPARISONS} more backward passes: {'the same bits' if is_same else 'OTHER BITS'}")


if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        sys.exit(print(__doc__))
    if len(sys.argv) not in (1, 6) or not all(word.isdigit() for word in sys.argv[1:]):
        sys.exit(__doc__)
    import cudnn  # after the usage, which needs no GPU
    import torch

    torch.manual_seed(1)
    print(f"cuDNN {cudnn.backend_version()} on {torch.cuda.get_device_name()}")
    for ragged in (False, True):
        measure([int(word) for word in sys.argv[1:]] or [16, 1024, 14, 2, 64], ragged)
