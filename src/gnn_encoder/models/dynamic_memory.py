"""The Dynamic Memory Network: reads a passage's sentences several times, with the query in view.

BERT-DMN 3.1; the attention gate is that of Xiong et al. (2016), to which the paper refers. All of it is computed in
fp32, because it costs little beside the encoder, and the recurrence adds up what bf16 rounds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence


@dataclass(frozen=True)
class MemoryConfig:
    """Sizes of the network and the points that the paper leaves open."""

    source: int
    """Width of the vectors of query tokens and sentences."""
    width: int = 256
    """d, the width of all states."""
    episodes: int = 4
    dropout: float = 0.1
    """Of the inputs and the attention gates."""
    shared_episodes: bool = True
    """All episodes have the same weights."""
    bidirectional: bool = False
    """The sentences' GRU reads in both directions, and the states of both are added."""
    memory_includes_question: bool = False
    """The last GRU reads m⁰ = Q before the memories of the episodes."""
    split_sentences: str = "rules"
    """How the sentences that it reads were divided (`gnn_encoder.inference.sentences`)."""


class AttentionGate(nn.Module):
    """One weight per sentence: how much of it an episode takes in (Xiong et al. 2016, eq. 8 to 10)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.logit = nn.Linear(4 * width, width), nn.Linear(width, 1)

    def forward(self, sentences: Tensor, question: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        """Gates [b, m], which sum to 1 over the real sentences; 0 at padding, and everywhere without a sentence.

        Args:
            sentences: [b, m, d].
            question, memory: [b, d].
            real: bool [b, m], False at padding.
        """
        question, memory = question[:, None], memory[:, None]
        similarities = torch.cat(
            [sentences * question, sentences * memory, (sentences - question).abs(), (sentences - memory).abs()], dim=-1
        )
        logits = self.logit(self.hidden(similarities).tanh()).squeeze(-1)
        # The lowest number instead of -inf: a softmax over nothing but -inf is NaN, and so is its gradient.
        logits = logits.masked_fill(~real, torch.finfo(logits.dtype).min)
        gates: Tensor = logits.softmax(dim=-1).masked_fill(~real, 0.0)
        return gates


class AttentionGRU(nn.Module):
    """A GRU whose update gate is given from outside (BERT-DMN eq. 1)."""

    def __init__(self, source: int, width: int) -> None:
        super().__init__()
        self.input, self.state = nn.Linear(source, 2 * width), nn.Linear(width, 2 * width)

    def forward(self, facts: Tensor, gates: Tensor) -> Tensor:
        """The last state [b, d] after facts [b, m, source] with update gates [b, m]; the first state is 0."""
        resets, candidates = self.input(facts).chunk(2, dim=-1)
        state: Tensor = resets.new_zeros(len(resets), resets.shape[-1])
        # Unbound, because the gradient of an index is an array of all sentences, for each sentence.
        steps = (tensor.unbind(dim=1) for tensor in (resets, candidates, gates.unsqueeze(-1)))
        for reset, candidate, gate in zip(*steps, strict=True):
            old_reset, old_candidate = self.state(state).chunk(2, dim=-1)
            candidate = (candidate + (reset + old_reset).sigmoid() * old_candidate).tanh()
            state = gate * candidate + (1 - gate) * state
        return state


class DynamicMemory(nn.Module):
    """Question, input and episodic memory module (BERT-DMN 3.1)."""

    def __init__(self, config: MemoryConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.question = nn.GRU(config.source, width, batch_first=True)
        self.input = nn.GRU(config.source, width, batch_first=True, bidirectional=config.bidirectional)
        weights = 1 if config.shared_episodes else config.episodes
        self.gates = nn.ModuleList(AttentionGate(width) for _ in range(weights))
        self.episodes = nn.ModuleList(AttentionGRU(2 * width, width) for _ in range(weights))
        self.memory = nn.GRU(width, width, batch_first=True)

    def forward(self, query: Tensor, query_length: Tensor, sentences: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Q and m [b, d]: the query's vector, and what the episodes remember of the passage.

        Args:
            query: token vectors [b, l, source]; query_length [b] of them are real. Without any, Q is 0.
            sentences: sentence vectors [b, m, source]; count [b] of them are real.
        """
        config = self.config
        with torch.autocast(query.device.type, enabled=False):
            query = dropout(query.float(), config.dropout, self.training)
            sentences = dropout(sentences.float(), config.dropout, self.training)
            question = _last_state(self.question, query, query_length)
            # A real sentence's state does not depend on the padding behind it, except when the GRU reads backward.
            states = _states(self.input, sentences, count)
            real = torch.arange(states.shape[1], device=states.device) < count[:, None]
            memory, memories = question, [question] if config.memory_includes_question else []
            for episode in range(config.episodes):
                which = episode % len(self.gates)
                gates = self.gates[which](states, question, memory, real)
                gates = dropout(gates, config.dropout, self.training)
                facts = torch.cat([states, memory[:, None].expand_as(states)], dim=-1)  # [b, m, 2d]
                memory = self.episodes[which](facts, gates)
                memories.append(memory)
            return question, self.memory(torch.stack(memories, dim=1))[1][0]


def sentence_means(vectors: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """The mean vector of each sentence, fp32 [b, m, d], then padding, and the number of sentences, int64 [b].

    Args:
        vectors: [b, t, d] of a text's tokens.
        number: int64 [b, t], the number of each token's sentence, from 1; tokens with 0 and -1 are in no sentence.
    """
    count = number.amax(dim=1).clamp(min=0)
    numbers = torch.arange(1, max(int(count.amax()), 1) + 1, device=number.device)
    # A product instead of a scatter: on a GPU a scatter adds in any order.
    members = (number[:, None] == numbers[:, None]).float()  # [b, m, t]
    with torch.autocast(vectors.device.type, enabled=False):
        return members @ vectors.float() / members.sum(dim=-1, keepdim=True).clamp(min=1), count


def _last_state(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> Tensor:
    """State [b, d] after the last real input; 0 where there is none."""
    packed = pack_padded_sequence(inputs, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    state: Tensor = gru(packed)[1][0]
    return state.masked_fill((lengths == 0)[:, None], 0.0)


def _states(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> Tensor:
    """States [b, m, d] after each input; those of both directions are added."""
    packed = pack_padded_sequence(inputs, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    states, _ = torch.nn.utils.rnn.pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=inputs.shape[1])
    return sum(states.split(gru.hidden_size, dim=-1), torch.zeros((), device=states.device))
