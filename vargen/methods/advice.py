"""What methods lose on the shipped model, and which of them gains in batches, for lines that a user reads.

Belongs here: recorded figures, as README tells them. Does not belong here: choosing a method.
"""

LOSSES = {
    "vvs-jacobi": "1 of 100 claims",
    "likeness-quality": "2 of 100 claims",
    "rows-fast": "the number of objects was right 6 points less often",
    "rows-batch": "claims and the number of objects were right 1 point less often",
}
"""Over 1,000 held-out captions, against plain decoding; of `rows-batch` with `guided_tokens` 96."""
IN_BATCHES = (
    "in batches of eight on a CPU, rows-batch with guided_tokens 96 was 1.3 to 1.5 times as fast as plain decoding "
    f"on the shipped model, and {LOSSES['rows-batch']}"
)
"""What a batch on a CPU may be drawn by, where the default drafts next to nothing."""
FEW = 1.1
"""Fewer times less passes than this are as many."""
