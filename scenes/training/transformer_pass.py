"""Forward passes of a LlamaGen transformer under teacher forcing: all tokens of a picture at once, fast on a CPU too.

Belongs here: the inputs, the mask, and ways to project and attend whose *backward* is fast on a CPU. Does not belong
here: losses and batches, which trainers have, and features of a finished model (`vargen.training.teachers`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vargen.drafters.transformer_layers import Attention, condition_attention_mask
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.training.cpu_attention import additive_mask, attention_in_chunks
from vargen.training.teachers import forced_inputs


def train_on_cpu(module: nn.Module, compiled: bool = False) -> None:
    """Let every attention in `module` work in chunks while it is trained, which takes half the time on a CPU.

    Args:
        compiled: also turn queries and keys by halves, for which a compiler makes faster code.
    """
    for each in module.modules():
        if isinstance(each, Attention):
            each.attend = attention_in_chunks
            if compiled:
                each.project = project_by_halves


def training_mask(condition_mask: Tensor, num_image_tokens: int, dtype: torch.dtype) -> Tensor:
    """`condition_attention_mask` for a training pass: additive, in `dtype` or autocast's, on a CPU with gradients; bool
    elsewhere."""
    mask = condition_attention_mask(condition_mask, num_image_tokens)
    if mask.device.type != "cpu" or not torch.is_grad_enabled():
        return mask
    return additive_mask(mask, dtype)


def training_inputs(
    transformer: LlamaGenTransformer, condition_embeds: Tensor, condition_mask: Tensor | None, input_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor, int]:
    """What `training_run` takes for the arguments of `training_forward`.

    Only `training_run` is compiled: compiled code would work out masks and rotary rows again for every score of every
    layer, which took a third of a training step on a CPU.

    Returns:
        Embeddings `[B, T + N - 1, dim]`, rotary rows, attention mask, and T.
    """
    if condition_mask is None:
        condition_mask = torch.ones(1, condition_embeds.shape[1], dtype=torch.bool, device=input_ids.device)
    inputs_embeds, positions = forced_inputs(transformer, condition_embeds, input_ids)
    mask = training_mask(condition_mask, input_ids.shape[1] - 1, inputs_embeds.dtype)
    return inputs_embeds, transformer.rotary_rows(positions), mask, condition_embeds.shape[1]


def training_run(
    transformer: LlamaGenTransformer,
    inputs_embeds: Tensor,
    rotary: Tensor,
    attention_mask: Tensor,
    condition_length: int,
) -> tuple[Tensor, Tensor]:
    """fp32 logits `[B, N, vocab_size]`, and hidden states `[B, N, dim]` after half of the blocks, for the outputs of
    `training_inputs`; made to be compiled."""
    hidden_states = inputs_embeds
    if transformer.training and transformer.config.token_dropout > 0:
        hidden_states = F.dropout(hidden_states, transformer.config.token_dropout)
    blocks = transformer.transformer_blocks
    half_way = hidden_states
    for number, block in enumerate(blocks, start=1):
        hidden_states = block(hidden_states, rotary, attention_mask)
        if number == len(blocks) // 2:
            half_way = hidden_states
    # The last condition token predicts image token 0; outputs of earlier ones are not used.
    first = condition_length - 1
    logits = transformer.lm_head(transformer.norm_out(hidden_states[:, first:])).float()
    return logits, half_way[:, first:]


def training_forward(
    transformer: LlamaGenTransformer, condition_embeds: Tensor, condition_mask: Tensor | None, input_ids: Tensor
) -> Tensor:
    """Logits of all image tokens under teacher forcing.

    It feeds the condition and all image tokens but the last.

    Args:
        condition_embeds: `[B, T, dim]` from `embed_condition`.
        condition_mask: bool `[B, T]`, false at padding; None when nothing is padded.
        input_ids: int64 `[B, N]` image tokens from the start of the picture.

    Returns:
        fp32 `[B, N, vocab_size]`: entry i predicts image token i.
    """
    return training_run(transformer, *training_inputs(transformer, condition_embeds, condition_mask, input_ids))[0]


def project_by_halves(attention: Attention, hidden_states: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`project` with the channels of queries and keys in another order: first channels of all pairs, then second ones.

    Attention gives the same output, and a compiler can make vector code for halves but not for pairs.
    """
    weight, head_dim = attention.to_qkv.weight, attention.head_dim
    num_turned = (attention.num_heads + attention.num_key_value_heads) * head_dim
    turned, kept = weight.split((num_turned, len(weight) - num_turned))
    by_halves = turned.view(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(turned.shape)
    query_key, value = attention.split_heads(F.linear(hidden_states, torch.cat((by_halves, kept))))
    first, second = query_key.float().chunk(2, dim=-1)  # [B, n, H + H_kv, D // 2]
    cosine, sine = rotary.unbind(-1)
    halves = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return attention.by_head(halves.to(query_key.dtype), value)
