"""The log-probabilities of target classes by a linear layer and a softmax, such as a language model's decoder."""
