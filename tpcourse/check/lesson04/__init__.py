"""The exercises of lesson 04, one module each: cases, one-device answers, budgets, misconceptions."""
