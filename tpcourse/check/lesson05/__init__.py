"""The exercises of lesson 05, one module each: cases, one-device answers, budgets, misconceptions."""
