#!/usr/bin/env python3
"""Golden values of blend_golden.h, from Megatron-LM's definitions in plain Python.

Shares nothing with src/data: NumPy's legacy RandomState is Python's own MT19937, seeded as NumPy
does (the 1812433253 initialiser). Run it to print the values: python3 tests/data/blend_golden.py
"""

import math
import random

SEED, SEQUENCE, SAMPLES = 1234, 4, 20
WEIGHTS = [5.0, 3.0, 2.0]
# The tokens of a corpus count up from a base of its own, over all of its sequences.
CORPORA = [(0, [5, 3, 7, 4]), (100, [6, 6, 9]), (200, [30])]


def random_state(seed):
    state = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, tuple(state + [624]), None))
    return generator


def shuffle(generator, values):
    for i in range(len(values) - 1, 0, -1):
        mask = (1 << i.bit_length()) - 1
        j = generator.getrandbits(32) & mask
        while j > i:
            j = generator.getrandbits(32) & mask
        values[i], values[j] = values[j], values[i]


def gpt_samples(base, lengths, num_samples):
    """The first token of each sample of one corpus, in Megatron's order."""
    documents, token = [], base
    for length in lengths:
        documents.append(list(range(token, token + length)))
        token += length
    per_epoch = sum(lengths)
    epochs = 1
    while epochs * per_epoch < num_samples * SEQUENCE + 1:
        epochs += 1
    total = (epochs * per_epoch - 1) // SEQUENCE
    before_last = ((epochs - 1) * per_epoch - 1) // SEQUENCE
    apart = epochs > 1 and num_samples - before_last < int(0.80 * ((per_epoch - 1) // SEQUENCE))
    generator = random_state(SEED)

    def shuffled(values):
        shuffle(generator, values)
        return values

    ids = list(range(len(lengths)))
    order = shuffled(ids * (epochs - 1)) + shuffled(ids[:]) if apart else shuffled(ids * epochs)
    stream = [token for document in order for token in documents[document]]
    samples = list(range(total))
    taken = shuffled(samples[:before_last]) + shuffled(samples[before_last:]) if apart else shuffled(samples)
    return [stream[sample * SEQUENCE] for sample in taken]


def main():
    shares = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    requests = [math.ceil(math.ceil(SAMPLES * share) * 1.005) for share in shares]
    samples = [gpt_samples(base, lengths, n) for (base, lengths), n in zip(CORPORA, requests)]
    counts, corpora, numbers, tokens = [0] * len(shares), [], [], []
    for i in range(SAMPLES):
        errors = [share * max(i, 1) - count for share, count in zip(shares, counts)]
        corpus = errors.index(max(errors))
        corpora.append(corpus)
        numbers.append(counts[corpus])
        tokens.append(samples[corpus][counts[corpus]])
        counts[corpus] += 1
    for name, values in [("requests", requests), ("corpus", corpora), ("sample", numbers), ("first tokens", tokens)]:
        print(f"{name}: {', '.join(map(str, values))}")


if __name__ == "__main__":
    main()
