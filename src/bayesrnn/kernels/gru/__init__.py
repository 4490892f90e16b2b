"""The GRU recurrence: `reference` (plain torch, the truth) and `loop` (hand-written backward)."""
