"""Layers that replace torch.nn's."""

from bayesrnn.nn.dropout import SequenceDropout
from bayesrnn.nn.embedding import Embedding
from bayesrnn.nn.rnn import GRU, LSTM, RNN
from bayesrnn.nn.unit_dropout import Dropout

__all__ = ["GRU", "LSTM", "RNN", "Dropout", "Embedding", "SequenceDropout"]
