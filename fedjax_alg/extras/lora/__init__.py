"""Low-rank adapters (LoRA), and how a server aggregates them."""
