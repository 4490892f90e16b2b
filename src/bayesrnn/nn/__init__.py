"""Layers that replace torch.nn's."""

from bayesrnn.nn.base import NoisyLayer
from bayesrnn.nn.dropout import Dropout, SequenceDropout
from bayesrnn.nn.embedding import Embedding
from bayesrnn.nn.rnn import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN", "Dropout", "Embedding", "NoisyLayer", "SequenceDropout"]
