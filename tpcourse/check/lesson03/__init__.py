"""The exercises of lesson 03: `model_states`, ... judge in the notebook, `rank_model_states`, ... run in the ranks."""
