"""The hot path: noisy copies → classifier → counts. The paper's ClassifySamples.

Noise comes in blocks. A block is a fixed number of copies of one input, which depends on the input's dimension alone; it
is drawn whole, from a generator seeded by (run seed, input, phase, block number). A forward pass takes as many blocks as
fill it, of one input or of several; where not even one fits, a block is classified in parts. So the same seed gives the
same noise bit for bit on a device type, whatever the size of forward passes and however the blocks are packed, spread
over workers or resumed; of a tail block only the first votes count.
"""

from ucan.votes.classifier import Classifier, as_answer
from ucan.votes.counter import TOO_SMALL, Form, Job, VoteCounter, classify_samples, matmul_in, running_tallies
from ucan.votes.kept import Keep, Votes
from ucan.votes.requests import Request, count_requests
from ucan.votes.streams import (
    ENUMERATED,
    LARGE,
    Stream,
    block_size,
    blocks,
    fitting,
    forward_size,
    halved,
    replayed_size,
    stream_of,
)

__all__ = [
    "ENUMERATED",
    "LARGE",
    "TOO_SMALL",
    "Classifier",
    "Form",
    "Job",
    "Keep",
    "Request",
    "Stream",
    "VoteCounter",
    "Votes",
    "as_answer",
    "block_size",
    "blocks",
    "classify_samples",
    "count_requests",
    "fitting",
    "forward_size",
    "halved",
    "matmul_in",
    "replayed_size",
    "running_tallies",
    "stream_of",
]
