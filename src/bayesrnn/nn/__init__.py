"""Layers that replace torch.nn's."""

from bayesrnn.nn.dropout import SequenceDropout
from bayesrnn.nn.embedding import Embedding
from bayesrnn.nn.rnn import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "Embedding", "SequenceDropout"]
