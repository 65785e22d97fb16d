"""Questions beyond one class: percentiles of numbers, the first k labels, confidence, many labels, pixels (docs/tasks.md).

One engine, several questions. A reader says what an answer of the model is and what is kept of many; a question says how
bounds on probabilities turn into a claim over a region; a record is that claim. Each file here is one of these.
"""
