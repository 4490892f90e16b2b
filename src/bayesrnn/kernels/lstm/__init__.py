"""The LSTM recurrence: `reference` (plain torch, the truth) and `loop` (hand-written backward)."""
