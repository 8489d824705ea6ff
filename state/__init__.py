"""Pure decisions: what an agent declares, and what each input does to a run."""
