"""The simple (Elman) recurrence: `reference` (plain torch, the truth) and `loop` (hand-written backward)."""
